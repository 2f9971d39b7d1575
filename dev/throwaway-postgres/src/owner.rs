//! As whom the server runs, and which folders are ours.

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, chown},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{Context as _, Error};

/// A user other than this process's, for when that is root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
    other: bool,
}

impl Owner {
    /// This process's user, or the one that stands in for root.
    pub(crate) fn find() -> Result<Self, Error> {
        // std has no getuid: a folder that was just made tells.
        let probe = folder(&env::temp_dir(), "owner")?;
        let made = fs::metadata(&probe).context(probe.display())?;
        fs::remove_dir(&probe).context(probe.display())?;
        if made.uid() != 0 {
            return Ok(Self { uid: made.uid(), gid: made.gid(), other: false });
        }
        let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
        ["postgres", "nobody"].iter().find_map(|name| entry(&passwd, name)).ok_or_else(|| {
            Error(
                "PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`: \
                 create one, or run as another user"
                    .to_owned(),
            )
        })
    }

    pub(crate) fn is_root(self) -> bool {
        self.other
    }

    /// A command that runs as this user, without the caller's settings for PostgreSQL.
    pub(crate) fn command(self, program: impl AsRef<Path>) -> Command {
        use std::os::unix::process::CommandExt as _;

        let mut command = Command::new(program.as_ref());
        command.current_dir("/").env("LC_ALL", "C");
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        if self.other {
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    /// A new folder below `parent` that is this user's alone.
    pub(crate) fn folder(self, parent: &Path, name: &str) -> Result<PathBuf, Error> {
        let path = folder(parent, name)?;
        if self.other {
            chown(&path, Some(self.uid), Some(self.gid)).context(path.display())?;
        }
        Ok(path)
    }

    /// A new file that this user alone may read.
    pub(crate) fn file(self, path: &Path, contents: &str) -> Result<(), Error> {
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        made.and_then(|mut file| file.write_all(contents.as_bytes())).context(path.display())?;
        if self.other {
            chown(path, Some(self.uid), Some(self.gid)).context(path.display())?;
        }
        Ok(())
    }

    /// Is this folder there, and this user's? Anybody may make folders in `/tmp`.
    pub(crate) fn owns(self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == self.uid)
    }
}

fn entry(passwd: &str, name: &str) -> Option<Owner> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        Some(Owner { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()?, other: true })
    })
}

/// A new folder with a name that nobody else has, for its owner only.
fn folder(parent: &Path, name: &str) -> Result<PathBuf, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);

    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = parent.join(format!("tpg-{name}-{}-{count}", process::id()));
    fs::DirBuilder::new().mode(0o700).create(&path).context(path.display())?;
    Ok(path)
}
