//! A proxy in front of PostgreSQL that counts what clients send, or lets it arrive later.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::mpsc::{UnboundedSender, unbounded_channel},
};

/// A listener on loopback whose connections go on to the server's socket.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    pub(crate) counts: Arc<Counts>,
    /// Nanoseconds that each burst of bytes takes longer, in either direction.
    delay: Arc<AtomicU64>,
}

/// What clients have sent so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Messages that the server answers with ReadyForQuery: the client waits for each.
    round_trips: AtomicU64,
    statements: AtomicU64,
}

impl Counts {
    /// Round trips and statements.
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.round_trips.load(Ordering::SeqCst), self.statements.load(Ordering::SeqCst))
    }
}

impl Proxy {
    /// With a `delay`, bytes wait that long on each way; without, they go straight on.
    pub(crate) async fn start(folder: &Path, delay: Option<Duration>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let proxy = Self { port: listener.local_addr()?.port(), counts: Arc::default(), delay: Arc::default() };
        let line = delay.map(|delay| {
            proxy.set_delay(delay);
            DelayLine::start(proxy.delay.clone())
        });
        let (socket, counts) = (folder.join(".s.PGSQL.5432"), proxy.counts.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, socket.clone(), counts.clone(), line.clone()));
            }
        });
        Ok(proxy)
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn options(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres")
            .database(database)
            .ssl_mode(PgSslMode::Disable)
    }
}

async fn relay(client: TcpStream, socket: PathBuf, counts: Arc<Counts>, line: Option<DelayLine>) {
    let Ok(server) = UnixStream::connect(socket).await else { return };
    if client.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        forward(from_client, to_server, Some(Reader::new(counts)), line.clone()),
        forward(from_server, to_client, None, line),
    );
}

/// Passes on what comes, until one end is gone.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    mut reader: Option<Reader>,
    line: Option<DelayLine>,
) {
    let mut buffer = vec![0; 64 * 1024];
    let Some(line) = line else {
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if let Some(reader) = &mut reader {
                reader.read(&buffer[..length]);
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
        return;
    };
    let (sender, mut arrived) = unbounded_channel::<Vec<u8>>();
    tokio::spawn(async move {
        while let Some(bytes) = arrived.recv().await {
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        line.send(&buffer[..length], &sender);
    }
}

/// Holds every parcel for the same time, without holding up those behind it.
///
/// A thread does it, since Tokio's timer counts in milliseconds: half of one would become one or two.
#[derive(Clone, Debug)]
struct DelayLine {
    parcels: mpsc::Sender<Parcel>,
    delay: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Parcel {
    due: Instant,
    bytes: Vec<u8>,
    to: UnboundedSender<Vec<u8>>,
}

impl DelayLine {
    fn start(delay: Arc<AtomicU64>) -> Self {
        let (parcels, sent) = mpsc::channel::<Parcel>();
        // It ends with the last sender.
        thread::spawn(move || {
            for parcel in sent {
                thread::sleep(parcel.due.saturating_duration_since(Instant::now()));
                // Nobody waits for what a closed connection had still to say.
                parcel.to.send(parcel.bytes).ok();
            }
        });
        Self { parcels, delay }
    }

    fn send(&self, bytes: &[u8], to: &UnboundedSender<Vec<u8>>) {
        let due = Instant::now() + Duration::from_nanos(self.delay.load(Ordering::Relaxed));
        self.parcels.send(Parcel { due, bytes: bytes.to_vec(), to: to.clone() }).ok();
    }
}

/// Reads the frontend's half of the protocol: a start-up message without a type, then a type and a length each.
#[derive(Debug)]
struct Reader {
    counts: Arc<Counts>,
    head: Vec<u8>,
    started: bool,
    /// What is left of the message whose head has been read.
    skip: usize,
}

impl Reader {
    fn new(counts: Arc<Counts>) -> Self {
        Self { counts, head: Vec::new(), started: false, skip: 0 }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let wanted = if self.started { 5 } else { 4 };
            let taken = (wanted - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.head.len() == wanted {
                self.message(wanted - 4);
            }
        }
    }

    fn message(&mut self, length_at: usize) {
        let length = self.head[length_at..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        self.skip = length.saturating_sub(4);
        if self.started {
            match self.head[0] {
                b'Q' => {
                    self.counts.round_trips.fetch_add(1, Ordering::SeqCst);
                    self.counts.statements.fetch_add(1, Ordering::SeqCst);
                }
                b'S' => drop(self.counts.round_trips.fetch_add(1, Ordering::SeqCst)),
                b'E' => drop(self.counts.statements.fetch_add(1, Ordering::SeqCst)),
                _ => {}
            }
        }
        self.started = true;
        self.head.clear();
    }
}
