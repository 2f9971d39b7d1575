//! The rules of ARCHITECTURE.md about floors, SQL and size.

use std::{
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
    for file in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "Cargo.toml", ".ci/run"] {
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|_| panic!("{file} is there"));
        for word in ["/home/", "/root/", "/work/", "index.crates.io", "crates.io/api"] {
            assert!(!text.contains(word), "{file} holds {word}");
        }
    }
}
