use std::{
    env, fs,
    io::Write as _,
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Context as _, Error,
    binaries::{self, Binaries},
    owner::Owner,
};

/// How long a server may take to start, on a machine that is busy with builds.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Of a server that has only a socket, whose name ends with it.
const USUAL_PORT: u16 = 5432;

/// Starts the server, and once more for every line that it reads from its input, until the process that holds the
/// other end of that pipe is gone. Signals of a terminal are not for it.
const KEEPER: &str = r#"
trap '' HUP INT TERM
bin=$1; home=$2; shift 2
start() {
    "$bin/postgres" -D "$home/data" -k "$home" "$@" >>"$home/log" 2>&1 &
    server=$!
}
start "$@"
while read -r line; do
    kill -INT "$server"
    wait "$server"
    start "$@"
done
# A server that has only just begun does not hear the signal yet.
while kill -QUIT "$server"; do sleep 0.1; done &
again=$!
wait "$server"
kill -KILL "$again"
rm -rf "$home"
"#;

const KEY: &str = include_str!("../tls/server.key");

/// How a [`Server`] is run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether a commit survives a crash of the machine: what a benchmark has to pay, and a test need not.
    pub durable: bool,
    /// How many connections it takes, 400 if nothing is said. All are for the superuser too. A standby needs 100.
    pub max_connections: Option<u32>,
    /// Whether it is a hot standby, of no primary: it only reads, for as long as it runs.
    pub standby: bool,
    /// Whether it also listens on 127.0.0.1, encrypted or not, with [a certificate](Server::CERTIFICATE) of its own.
    pub tls: bool,
}

/// A running server. Dropping it, or ending the process in whatever way, stops it and removes all it had.
#[derive(Debug)]
pub struct Server {
    home: PathBuf,
    keeper: Child,
    port: u16,
}

impl Server {
    /// The certificate, in PEM, of a server with [`tls`](Options::tls), for `localhost` and 127.0.0.1. It is
    /// self-signed: a client that verifies takes it for its root.
    pub const CERTIFICATE: &str = include_str!("../tls/server.crt");

    /// Starts a server with data of its own.
    ///
    /// # Errors
    ///
    /// There are no binaries and none can be fetched, or the server does not start; the message says what it wrote.
    pub fn start(options: &Options) -> Result<Self, Error> {
        let owner = Owner::find()?;
        let binaries = binaries::find(owner)?;
        let parent = workplace(options);
        clean_up(&parent);
        let home = owner.folder(&parent, "run")?;
        let port = if options.tls { free_port()? } else { USUAL_PORT };
        if let Err(error) = prepare(owner, &binaries, &home.join("data"), options) {
            fs::remove_dir_all(&home).ok();
            return Err(error);
        }
        let keeper = owner
            .command("/bin/sh")
            .args(["-c", KEEPER, "throwaway-postgres"])
            .args([&binaries.folder, &home])
            .args(settings(options, port))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("/bin/sh")?;
        let server = Self { home, keeper, port };
        server.await_start(None)?;
        Ok(server)
    }

    /// Stops the server, with which all its clients lose their connections, and starts it again with the same data,
    /// at the same address. It takes connections when this returns.
    ///
    /// # Errors
    ///
    /// The server does not start again.
    pub fn restart(&mut self) -> Result<(), Error> {
        let before = self.pid();
        let keeper = self.keeper.stdin.as_mut().ok_or_else(|| Error("the server was stopped".to_owned()))?;
        keeper.write_all(b"restart\n").context("the server's keeper")?;
        self.await_start(before.as_deref())
    }

    /// A connection URL for one of its databases, for the superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@localhost:{}/{database}?host={}", self.port, self.home.display())
    }

    /// As [`url`](Self::url), by TCP, which only a server with [`tls`](Options::tls) listens on.
    #[must_use]
    pub fn tcp_url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// What the server has logged so far: a line begins with the time, the process and the database.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }

    /// Waits until it takes connections, and is another process than `before`.
    fn await_start(&self, before: Option<&str>) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            // The eighth line says when it takes connections.
            let status = self.pid_file(7).unwrap_or_default();
            if ["ready", "standby"].contains(&status.as_str()) && self.pid().as_deref() != before {
                return Ok(());
            }
            // Later the clients that it loses are told so with this word.
            if before.is_none() && self.log().contains("FATAL") {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(Error(format!("the PostgreSQL server did not start; it says: {}", self.log().trim())))
    }

    fn pid(&self) -> Option<String> {
        self.pid_file(0)
    }

    fn pid_file(&self, line: usize) -> Option<String> {
        let written = fs::read_to_string(self.home.join("data/postmaster.pid")).ok()?;
        Some(written.lines().nth(line)?.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok();
    }
}

/// A port that nobody listens on. Somebody may be faster to take it; then the server does not start.
fn free_port() -> Result<u16, Error> {
    let probe = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(probe.context("127.0.0.1")?.port())
}

fn settings(options: &Options, port: u16) -> Vec<String> {
    let mut settings = vec![
        format!("port={port}"),
        format!("max_connections={}", options.max_connections.unwrap_or(400)),
        "superuser_reserved_connections=0".to_owned(),
    ];
    let mut set = |more: &[&str]| settings.extend(more.iter().map(|&setting| setting.to_owned()));
    set(&["log_line_prefix=%m [%p] %d ", "max_wal_size=4GB", "autovacuum_naptime=10s"]);
    if options.tls {
        set(&["listen_addresses=127.0.0.1", "ssl=on"]);
    } else {
        set(&["listen_addresses="]);
    }
    if options.standby {
        // It must have whatever its primary had, here the one that `initdb` ran.
        set(&["hot_standby=on"]);
    } else {
        set(&["wal_level=minimal", "max_wal_senders=0"]);
    }
    if options.durable {
        // What a server of a few gigabytes would have.
        set(&["shared_buffers=1GB"]);
    } else {
        set(&["fsync=off", "synchronous_commit=off", "full_page_writes=off"]);
    }
    settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

/// Where servers run: in memory if there is any to spare and nothing has to outlast it, and with a short name, since
/// a socket's path may hold no more than 107 bytes.
fn workplace(options: &Options) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if !options.durable && has_room(&memory) { memory } else { env::temp_dir() }
}

/// A container has 64 MB there as a rule; a server with a few dozen databases takes a few hundred.
fn has_room(folder: &Path) -> bool {
    const WANTED_KIB: u64 = 2 * 1024 * 1024;

    let Ok(said) = Command::new("df").arg("-Pk").arg(folder).output() else {
        return false;
    };
    // "Filesystem 1024-blocks Used Available Capacity Mounted on"
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let available = said.lines().nth(1).and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    folder.is_dir() && available.is_some_and(|available| available >= WANTED_KIB)
}

/// A data folder to copy from, made once by each user with each release: `initdb` takes ten times as long as a copy.
fn template(owner: Owner, binaries: &Binaries) -> Result<PathBuf, Error> {
    let parent = env::temp_dir();
    let name = if owner.is_root() { "root" } else { "user" };
    let template = parent.join(format!("tpg-template-{name}-{}", binaries.version));
    if owner.owns(&template) {
        return Ok(template);
    }
    let made = owner.folder(&parent, "initdb")?;
    let initdb = owner
        .command(binaries.folder.join("initdb"))
        .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N", "-D"])
        .arg(made.join("data"))
        .output()
        .context("initdb")?;
    if !initdb.status.success() {
        fs::remove_dir_all(&made).ok();
        return Err(Error(format!("initdb failed: {}", String::from_utf8_lossy(&initdb.stderr).trim())));
    }
    // Somebody may have been faster; and what is there may be somebody else's, who must not choose our data.
    if fs::rename(&made, &template).is_err() {
        if !owner.owns(&template) {
            return Ok(made);
        }
        fs::remove_dir_all(&made).ok();
    }
    Ok(template)
}

/// Fills the data folder.
fn prepare(owner: Owner, binaries: &Binaries, data: &Path, options: &Options) -> Result<(), Error> {
    copy(owner, &template(owner, binaries)?, data)?;
    if options.standby {
        owner.file(&data.join("standby.signal"), "")?;
    }
    if options.tls {
        owner.file(&data.join("server.crt"), Server::CERTIFICATE)?;
        owner.file(&data.join("server.key"), KEY)?;
    }
    Ok(())
}

fn copy(owner: Owner, template: &Path, data: &Path) -> Result<(), Error> {
    let copied = owner.command("/bin/cp").arg("-a").arg(template.join("data")).arg(data).output().context("cp")?;
    if copied.status.success() {
        return Ok(());
    }
    Err(Error(format!("the template cannot be copied: {}", String::from_utf8_lossy(&copied.stderr).trim())))
}

/// Removes what a machine's crash, or somebody who killed the keeper as well, has left: folders whose maker and whose
/// server are both gone.
fn clean_up(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(maker) = name.strip_prefix("tpg-run-").and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        let server = fs::read_to_string(entry.path().join("data/postmaster.pid")).unwrap_or_default();
        let server = server.lines().next().unwrap_or_default();
        if !is_running(maker) && (server.is_empty() || !is_running(server)) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

fn is_running(pid: &str) -> bool {
    // Where one may not ask, it runs.
    Command::new("/bin/sh")
        .args(["-c", "kill -0 \"$1\" 2>&1", "kill", pid])
        .output()
        .map_or(true, |asked| asked.status.success() || String::from_utf8_lossy(&asked.stdout).contains("ermi"))
}
