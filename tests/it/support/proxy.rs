use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

use super::wire;

/// Where a connection breaks, once it is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The COMMIT never reaches the server.
    BeforeCommit,
    /// The server commits, and its answer never reaches the client.
    AfterCommit,
}

/// Connections to the server of `options` that break at the next COMMIT whenever the flag is set.
pub async fn proxy(options: PgConnectOptions, cut: Cut) -> (PgConnectOptions, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    (between(options, Breaking { cut, armed: armed.clone() }).await, armed)
}

/// Connections to the server of `options` that fall silent where the handle says: nothing is relayed any more, and
/// nothing is closed, as when a network fails. The server's side is closed when the client closes its own.
pub async fn silent_proxy(options: PgConnectOptions) -> (PgConnectOptions, Silence) {
    let silence = Silence::default();
    (between(options, silence.clone()).await, silence)
}

/// Says which connections of a [`silent_proxy`] fall silent.
#[derive(Clone, Default)]
pub struct Silence(Arc<Silences>);

#[derive(Default)]
struct Silences {
    armed: Mutex<Vec<Armed>>,
    accepted: AtomicUsize,
    silent: watch::Sender<usize>,
    severed: watch::Sender<()>,
}

struct Armed {
    pattern: Vec<u8>,
    pass_on: bool,
}

impl Silence {
    /// Lets one connection fall silent, the first whose client sends these bytes from now on. The server still gets
    /// what the client sent with them in one go, if `pass_on`. Each call is for one connection.
    ///
    /// The text of a statement is sent once by each connection, to be prepared, and later executions only name it. A
    /// statement without parameters that is run as text (`BEGIN`, `COMMIT`) is sent each time, with a zero byte after.
    pub fn after(&self, pattern: &[u8], pass_on: bool) {
        self.0.armed.lock().unwrap().push(Armed { pattern: pattern.to_owned(), pass_on });
    }

    /// How many connections have fallen silent so far.
    pub fn count(&self) -> usize {
        *self.0.silent.borrow()
    }

    /// Waits until so many connections have fallen silent.
    pub async fn until(&self, count: usize) {
        self.0.silent.subscribe().wait_for(|silent| *silent >= count).await.unwrap();
    }

    /// How many connections there have been so far.
    pub fn connections(&self) -> usize {
        self.0.accepted.load(Ordering::SeqCst)
    }

    /// Closes both ends of every connection that there is, silent or not, as when the client's process is killed.
    pub fn sever_all(&self) {
        self.0.severed.send_replace(());
    }
}

/// Connections to the server of `options` on which each statement that clients send says something else in the places of
/// these words.
pub(super) async fn rewriting_proxy(
    options: PgConnectOptions,
    words: &'static [(&'static str, &'static str)],
) -> PgConnectOptions {
    between(options, Rewriting(words)).await
}

/// What goes wrong between clients and their server.
trait Fault: Clone + Send + Sync + 'static {
    /// Hears of a new connection, and ends when that is to be closed.
    fn accepted(&self) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }

    /// What becomes of a connection when its client has sent this, one or several whole messages.
    fn at(&self, sent: &[u8]) -> Fate;

    fn has_fallen_silent(&self) {}

    /// What the server gets instead of these messages.
    fn rewritten(&self, sent: Vec<u8>) -> Vec<u8> {
        sent
    }
}

#[derive(Clone)]
struct Rewriting(&'static [(&'static str, &'static str)]);

impl Fault for Rewriting {
    fn at(&self, _: &[u8]) -> Fate {
        Fate::GoesOn
    }

    fn rewritten(&self, sent: Vec<u8>) -> Vec<u8> {
        let (mut rest, mut rewritten) = (&sent[..], Vec::with_capacity(sent.len()));
        while let Some(length) = wire::message(rest) {
            let (message, others) = rest.split_at(length);
            match message[0] {
                // Parse and Query: only these hold the text of a statement.
                b'P' | b'Q' => {
                    let (head, tail) = message[5..].split_at(wire::text_end(message));
                    let text = String::from_utf8(head.to_vec()).unwrap();
                    let text = self.0.iter().fold(text, |text, (word, instead)| text.replace(word, instead));
                    rewritten.extend(wire::typed(message[0], &[text.as_bytes(), tail].concat()));
                }
                _ => rewritten.extend(message),
            }
            rest = others;
        }
        rewritten
    }
}

#[derive(Clone, Copy)]
enum Fate {
    GoesOn,
    Breaks,
    BreaksAtTheAnswer,
    FallsSilent { pass_on: bool },
}

#[derive(Clone)]
struct Breaking {
    cut: Cut,
    armed: Arc<AtomicBool>,
}

impl Fault for Breaking {
    fn at(&self, sent: &[u8]) -> Fate {
        match self.cut {
            _ if !contains(sent, b"COMMIT\0") || !self.armed.swap(false, Ordering::SeqCst) => Fate::GoesOn,
            Cut::BeforeCommit => Fate::Breaks,
            Cut::AfterCommit => Fate::BreaksAtTheAnswer,
        }
    }
}

impl Fault for Silence {
    fn accepted(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.accepted.fetch_add(1, Ordering::SeqCst);
        let mut severed = self.0.severed.subscribe();
        async move { drop(severed.changed().await) }
    }

    fn at(&self, sent: &[u8]) -> Fate {
        let mut armed = self.0.armed.lock().unwrap();
        match armed.iter().position(|armed| contains(sent, &armed.pattern)) {
            Some(first) => Fate::FallsSilent { pass_on: armed.remove(first).pass_on },
            None => Fate::GoesOn,
        }
    }

    fn has_fallen_silent(&self) {
        self.0.silent.send_modify(|silent| *silent += 1);
    }
}

fn contains(sent: &[u8], pattern: &[u8]) -> bool {
    sent.windows(pattern.len()).any(|part| part == pattern)
}

/// Listens, and relays every connection to the server of `options`.
async fn between(options: PgConnectOptions, fault: impl Fault) -> PgConnectOptions {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = options.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (server, fault, severed) = (server.clone(), fault.clone(), fault.accepted());
            tokio::spawn(async move {
                tokio::select! {
                    () = severed => {}
                    () = relay(client, server, fault) => {}
                }
            });
        }
    });
    at_port(&options, port)
}

/// The same database by another way: by loopback, and not encrypted.
pub(super) fn at_port(options: &PgConnectOptions, port: u16) -> PgConnectOptions {
    // sqlx cannot take a socket back: start from nothing.
    PgConnectOptions::new_without_pgpass()
        .username(options.get_username())
        .database(options.get_database().unwrap_or("postgres"))
        .host("127.0.0.1")
        .port(port)
        .ssl_mode(PgSslMode::Disable)
}

/// A connection in either of the two ways.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection to the server of `options` on which nothing was said yet.
pub(super) async fn dial(options: &PgConnectOptions) -> std::io::Result<Box<dyn Stream>> {
    Ok(match options.get_socket() {
        Some(folder) => {
            let socket = folder.join(format!(".s.PGSQL.{}", options.get_port()));
            Box::new(UnixStream::connect(socket).await?)
        }
        None => Box::new(TcpStream::connect((options.get_host(), options.get_port())).await?),
    })
}

/// Ends, and with it both connections, where the connection breaks or one side has closed it.
async fn relay(mut client: TcpStream, server: PgConnectOptions, fault: impl Fault) {
    // Nobody there: the client is told by the end of its connection.
    let Ok(mut server) = dial(&server).await else { return };
    let (mut up, mut down) = (Vec::with_capacity(65_536), vec![0; 65_536]);
    let (mut started, mut breaking) = (false, false);
    loop {
        tokio::select! {
            read = client.read_buf(&mut up) => {
                let Ok(1..) = read else { return };
                if !wire::is_whole(&up, if started { wire::message } else { wire::first }) { continue }
                let begins = !started;
                started = started || wire::is_startup(&up);
                match fault.at(&up) {
                    Fate::GoesOn => {}
                    Fate::Breaks => return,
                    Fate::BreaksAtTheAnswer => breaking = true,
                    Fate::FallsSilent { pass_on } => {
                        if pass_on && server.write_all(&up).await.is_err() { return }
                        fault.has_fallen_silent();
                        return outlast(client).await;
                    }
                }
                let up = if begins { std::mem::take(&mut up) } else { fault.rewritten(std::mem::take(&mut up)) };
                if server.write_all(&up).await.is_err() { return }
            }
            read = server.read(&mut down) => {
                let Ok(length @ 1..) = read else { return };
                // Its answer: what was asked for has happened.
                if breaking { return }
                if client.write_all(&down[..length]).await.is_err() { return }
            }
        }
    }
}

/// Hears nothing of what the client says, until it closes the connection. The caller's server is kept so long.
async fn outlast(mut client: TcpStream) {
    let mut unheard = vec![0; 65_536];
    while let Ok(1..) = client.read(&mut unheard).await {}
}
