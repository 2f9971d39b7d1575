//! Where `initdb` and `postgres` are.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, fetch, owner::Owner};

/// The oldest release that the project tests with.
const OLDEST: u32 = 14;

/// A folder with `initdb` and `postgres`, and what the latter says of its version.
#[derive(Debug, Clone)]
pub(crate) struct Binaries {
    pub(crate) folder: PathBuf,
    pub(crate) version: String,
}

/// What is on the machine, else what was fetched before, else what can be fetched. With `THROWAWAY_POSTGRES=fetch`
/// in the environment the machine's own are passed over.
pub(crate) fn find(owner: Owner) -> Result<Binaries, Error> {
    if let Some(named) = env::var_os("PG_BIN") {
        return usable(Path::new(&named)).ok_or_else(|| {
            let named = named.to_string_lossy();
            Error(format!("PG_BIN={named} holds no initdb and postgres of release {OLDEST} or later"))
        });
    }
    let own = env::var("THROWAWAY_POSTGRES").is_ok_and(|value| value == "fetch");
    let installed = if own { None } else { candidates().iter().find_map(|folder| usable(folder)) };
    match installed {
        Some(binaries) => Ok(binaries),
        None => {
            let folder = fetch::fetch(owner)?;
            usable(&folder).ok_or_else(|| {
                Error(format!("the binaries fetched into {} do not run on this machine", folder.display()))
            })
        }
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(said) = Command::new("pg_config").arg("--bindir").output() {
        found.push(PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()));
    }
    found.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    // Debian, Red Hat, Homebrew on either processor.
    for (parent, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/usr", "pgsql-"),
        ("/opt/homebrew/opt", "postgresql"),
        ("/usr/local/opt", "postgresql"),
    ] {
        let mut releases: Vec<PathBuf> = fs::read_dir(parent)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path().join("bin"))
            .collect();
        releases.sort();
        found.extend(releases.into_iter().rev());
    }
    found
}

fn usable(folder: &Path) -> Option<Binaries> {
    if !folder.join("initdb").is_file() {
        return None;
    }
    let said = Command::new(folder.join("postgres")).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
    let version = said.split_whitespace().nth(2)?.to_owned();
    let major: u32 = version.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()?;
    (major >= OLDEST).then(|| Binaries { folder: folder.to_owned(), version })
}
