//! The rules of ARCHITECTURE.md about floors, SQL and size; and that docs/rules.md is true.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder, with their text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((relative(&path), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no sources");
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()
}

/// What the compiler sees: no comments, no tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn floor(path: &str) -> u8 {
    match path.split('/').nth(1) {
        Some("middleware") => 3,
        Some("engine" | "postgres") => 2,
        _ => 1,
    }
}

#[test]
fn each_floor_looks_only_down() {
    for (path, text) in sources("src").into_iter().filter(|(path, _)| path != "src/lib.rs") {
        let code = code(&text);
        let forbidden: &[&str] = match floor(&path) {
            1 => &["sqlx::", "axum::", "tokio", "tower", "crate::engine", "crate::postgres", "crate::middleware"],
            2 => &["axum::", "tower", "http_body", "crate::middleware", "super::super"],
            _ => &["crate::postgres"],
        };
        for word in forbidden {
            assert!(!code.contains(word), "{path} must not know of `{word}`");
        }
        if path.starts_with("src/postgres") {
            // Floor 2 has two halves: claims and attempts know SQL's outcomes, not the other way round.
            assert!(!code.contains("crate::engine") && !code.contains("engine::"), "{path} must not know the engine");
        }
    }
}

#[test]
fn all_sql_is_in_src_postgres() {
    for (path, text) in sources("src").into_iter().filter(|(path, _)| !path.starts_with("src/postgres")) {
        let code = code(&text).to_lowercase();
        for word in ["sqlx::query", "raw_sql", ".execute(", ".fetch_", "insert into", "select ", "update idem"] {
            assert!(!code.contains(word), "{path} holds `{word}`");
        }
    }
}

#[test]
fn no_file_grows_beyond_400_lines() {
    for (path, text) in sources("src") {
        assert!(text.lines().count() <= 400, "{path} has {} lines", text.lines().count());
    }
}

#[test]
fn the_library_has_no_way_to_panic_but_those_that_are_explained() {
    let expects: usize = sources("src")
        .iter()
        .map(|(path, text)| {
            let code = code(text);
            for word in
                ["panic!", "todo!", "unimplemented!", "unreachable!", ".unwrap()", "unsafe ", "std::process::exit"]
            {
                assert!(!code.contains(word), "{path} holds `{word}`");
            }
            code.matches(".expect(").count()
        })
        .sum();
    assert_eq!(expects, 5, "each .expect() is an invariant of src/postgres/transaction.rs or lent.rs");
}

#[test]
fn every_dependency_path_and_document_is_free_of_this_machine() {
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", RULES, "Cargo.toml", ".ci/run"];
    for file in documents {
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|_| panic!("{file} is there"));
        for word in ["/home/", "/root/", "/work/", "index.crates.io", "crates.io/api"] {
            assert!(!text.contains(word), "{file} holds {word}");
        }
    }
}

const RULES: &str = "docs/rules.md";

/// A row of docs/rules.md: a number, and where to find what it stands for.
struct Row {
    number: String,
    file: String,
    test_file: String,
    test: String,
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join(RULES)).unwrap();
    let rows: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
            let number = number(cells[0])?;
            let [_, _, file, test] = cells[..] else { panic!("{number} has {} cells", cells.len()) };
            let (test_file, test) = test.trim_matches('`').split_once("::").unwrap_or_default();
            let [file, test_file, test] = [file.trim_matches('`'), test_file, test].map(str::to_owned);
            Some(Row { number, file, test_file, test })
        })
        .collect();
    assert!(!rows.is_empty(), "{RULES} has no rows");
    rows
}

/// A word that is the number of a rule, guarantee or fault, such as `r38` or `F24`.
fn number(word: &str) -> Option<String> {
    let digits = word.strip_prefix(|letter: char| "RTGFrtgf".contains(letter))?;
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.to_ascii_uppercase())
}

/// The numbers among these words, with all that lie between two of them (`r7`, `to`, `r9`).
fn numbers<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_range = false;
    for word in words {
        if let Some(number) = number(word) {
            if let (true, Some(first)) = (is_range, found.last()) {
                let (letter, first) = first.split_at(1);
                assert!(number.starts_with(letter), "a range from {letter}{first} to {number}");
                let bounds = [first, &number[1..]].map(|bound| bound.parse::<u32>().unwrap());
                let between: Vec<_> = (bounds[0] + 1..bounds[1]).map(|between| format!("{letter}{between}")).collect();
                found.extend(between);
            }
            found.push(number);
            is_range = false;
        } else {
            is_range = word == "to" && !found.is_empty();
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

/// The names of the tests in a file.
fn tests(text: &str) -> Vec<&str> {
    let mut lines = text.lines().map(str::trim_start);
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            names.extend(lines.by_ref().find_map(|line| line.split_once("fn ")?.1.split('(').next()));
        }
    }
    names
}

/// What a comment says, be it a doc comment or not.
fn comments(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix("//"))
}

fn tested_sources() -> Vec<(String, String)> {
    sources("src").into_iter().chain(sources("tests")).collect()
}

#[test]
fn each_row_of_the_rules_has_its_file_and_its_test() {
    let sources = tested_sources();
    let mut seen = HashSet::new();
    for Row { number, file, test_file, test } in rows() {
        assert!(seen.insert(number.clone()), "{number} has two rows");
        assert!(root().join(&file).is_file(), "{number}: there is no file {file}");
        let text = sources.iter().find_map(|(path, text)| (*path == test_file).then_some(text));
        let text = text.unwrap_or_else(|| panic!("{number}: there is no file {test_file}"));
        assert!(tests(text).contains(&&*test), "{number}: {test_file} has no test {test}");
        assert!(numbers(test.split('_')).contains(&number), "{number}: the name of {test} does not carry it");
    }
}

#[test]
fn each_number_that_is_used_has_a_row_of_the_rules() {
    let explained: HashSet<_> = rows().into_iter().map(|row| row.number).collect();
    let assert_explained = |used: Vec<String>, place: &str| {
        for number in used {
            assert!(explained.contains(&number), "{place} uses {number}, which has no row in {RULES}");
        }
    };
    for (path, text) in tested_sources() {
        for name in tests(&text) {
            assert_explained(numbers(name.split('_')), &format!("{path}::{name}"));
        }
        for comment in comments(&text) {
            assert_explained(numbers(words(comment)), &format!("{path}, //{comment}"));
        }
    }
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        for line in text.lines() {
            assert_explained(numbers(words(line)), &format!("{document}, {line}"));
        }
    }
}

/// They are for those who work on the crate.
#[test]
fn public_documentation_holds_no_numbers_of_rules() {
    for (path, text) in sources("src") {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for comment in comments(text).filter(|comment| comment.starts_with(['/', '!'])) {
            assert_eq!(numbers(words(comment)), [""; 0], "{path}, //{comment}");
        }
    }
    let mut documents = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    documents.extend(fs::read_dir(root().join("src/docs")).unwrap().map(|entry| entry.unwrap().path()));
    for path in documents.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        for line in fs::read_to_string(&path).unwrap().lines() {
            assert_eq!(numbers(words(line)), [""; 0], "{}, {line}", relative(&path));
        }
    }
}
