//! A stand-in for PgBouncer in its transaction mode, which a machine with tests on it may not have.

use std::{
    mem,
    sync::{Arc, Mutex},
};

use sqlx::postgres::PgConnectOptions;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{
    proxy::{Stream, at_port, dial},
    wire,
};

/// What PgBouncer understands in a client's first message, and `extra_float_digits`, which sqlx always sends and
/// PgBouncer has to be told to ignore.
const ACCEPTED: [&str; 8] = [
    "user",
    "database",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
    "application_name",
    "extra_float_digits",
];

/// What sqlx asks for. The stand-in asks the server for it whatever a client says.
const SESSION: [(&str, &str); 4] =
    [("client_encoding", "UTF8"), ("DateStyle", "ISO, MDY"), ("TimeZone", "UTC"), ("application_name", "pooler")];

/// Connections to the server of `options` for any number of clients, which share so many to the server: each client
/// has one for a transaction at a time. Any user is let in, as the one of `options`, who must need no password.
///
/// As behind PgBouncer, settings, prepared statements and session locks stay with a connection to the server, whoever
/// has it next; a first message with parameters that are not [accepted](ACCEPTED) is refused; and the connection of
/// a client that leaves within a transaction is closed. Requests to cancel are ignored.
pub async fn pooler(options: PgConnectOptions, connections: usize) -> PgConnectOptions {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (first, greeting) = open(&options).await.expect("the server is there");
    let servers = Servers {
        options: options.clone(),
        greeting,
        free: Arc::new(Semaphore::new(connections)),
        idle: Mutex::new(vec![first]),
    };
    let servers = Arc::new(servers);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            client.set_nodelay(true).unwrap();
            tokio::spawn(attend(client, servers.clone()));
        }
    });
    at_port(&options, port)
}

/// The connections to the server.
struct Servers {
    options: PgConnectOptions,
    /// What the server says of itself at first.
    greeting: Vec<u8>,
    free: Arc<Semaphore>,
    idle: Mutex<Vec<Server>>,
}

type Server = Peer<Box<dyn Stream>>;

impl Servers {
    /// One that nobody else has until it is given back or dropped, the one that was given back last by preference.
    async fn borrow(&self) -> Option<(Server, OwnedSemaphorePermit)> {
        let permit = self.free.clone().acquire_owned().await.ok()?;
        while let Some(mut server) = self.pop() {
            if server.is_open().await {
                return Some((server, permit));
            }
        }
        Some((open(&self.options).await?.0, permit))
    }

    fn pop(&self) -> Option<Server> {
        self.idle.lock().unwrap().pop()
    }

    fn give_back(&self, (server, permit): (Server, OwnedSemaphorePermit)) {
        self.idle.lock().unwrap().push(server);
        drop(permit);
    }
}

/// A new connection to the server, and what that said of its settings.
async fn open(options: &PgConnectOptions) -> Option<(Server, Vec<u8>)> {
    let mut server = Peer::new(dial(options).await.ok()?);
    let database = options.get_database().unwrap_or("postgres");
    let parameters = [("user", options.get_username()), ("database", database)].into_iter().chain(SESSION);
    server.send(&wire::startup(parameters)).await?;
    let mut said = Vec::new();
    loop {
        let message = server.message(wire::message).await?;
        match message[0] {
            b'R' => assert_eq!(message[5..], [0; 4], "the server must trust the user"),
            b'S' => said.extend(message),
            b'E' => return None,
            b'Z' => return Some((server, said)),
            _ => {}
        }
    }
}

/// All that becomes of a client. `None` says that it is gone, or has to go.
async fn attend(client: TcpStream, servers: Arc<Servers>) -> Option<()> {
    let mut client = Peer::new(client);
    greet(&mut client, &servers.greeting).await?;
    loop {
        let first = client.message(wire::message).await.filter(|message| message[0] != b'X')?;
        let mut lent = tokio::select! {
            lent = servers.borrow() => lent?,
            () = client.gone() => return None,
        };
        transact(&mut client, &mut lent.0, first).await?;
        servers.give_back(lent);
    }
}

/// Until the client may ask for something.
async fn greet(client: &mut Peer<TcpStream>, greeting: &[u8]) -> Option<()> {
    let mut first = client.message(wire::first).await?;
    while wire::asks_for_encryption(&first) {
        client.send(b"N").await?;
        first = client.message(wire::first).await?;
    }
    if !wire::is_startup(&first) {
        return None;
    }
    if let Some(refused) = wire::parameters(&first).find(|name| !is_accepted(name)) {
        let refused = String::from_utf8_lossy(refused);
        let error = format!("SFATAL\0C08P01\0Munsupported startup parameter: {refused}\0\0");
        client.send(&wire::typed(b'E', error.as_bytes())).await?;
        return None;
    }
    let accepted = wire::typed(b'R', &[0; 4]);
    let key = wire::typed(b'K', &[0; 8]);
    client.send(&[&accepted, greeting, &key, &wire::typed(b'Z', b"I")].concat()).await
}

fn is_accepted(name: &[u8]) -> bool {
    ACCEPTED.iter().any(|accepted| accepted.as_bytes().eq_ignore_ascii_case(name))
}

/// Relays until the server has answered everything and is in no transaction. `None` if it is not fit for others.
async fn transact(client: &mut Peer<TcpStream>, server: &mut Server, first: Vec<u8>) -> Option<()> {
    let (mut unanswered, mut unfinished) = (0, false);
    let mut sent = Some(first);
    loop {
        if let Some(message) = sent.take() {
            match message[0] {
                b'X' => return None,
                // Query, FunctionCall and Sync: the server says when it is ready for more.
                b'Q' | b'F' | b'S' => (unanswered, unfinished) = (unanswered + 1, false),
                // A Sync is to come after these.
                b'P' | b'B' | b'D' | b'E' | b'C' => unfinished = true,
                _ => {}
            }
            server.send(&message).await?;
        }
        tokio::select! {
            message = client.message(wire::message) => sent = Some(message?),
            answer = server.message(wire::message) => {
                let answer = answer?;
                client.send(&answer).await?;
                if answer[0] == b'Z' {
                    unanswered -= 1;
                    if unanswered == 0 && !unfinished && answer[5] == b'I' {
                        return Some(());
                    }
                }
            }
        }
    }
}

/// Somebody who sends messages.
struct Peer<S> {
    stream: S,
    unread: Vec<u8>,
}

impl<S: Stream> Peer<S> {
    fn new(stream: S) -> Self {
        Self { stream, unread: Vec::new() }
    }

    /// The next message, or `None` if the connection has ended. Nothing is lost if this is dropped.
    async fn message(&mut self, length: fn(&[u8]) -> Option<usize>) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = length(&self.unread).filter(|length| *length <= self.unread.len()) {
                let rest = self.unread.split_off(length);
                return Some(mem::replace(&mut self.unread, rest));
            }
            self.read().await?;
        }
    }

    /// Waits for the end of the connection, and keeps what comes before it.
    async fn gone(&mut self) {
        while self.read().await.is_some() {}
    }

    /// Is the connection open, as far as one can tell without waiting? Drops what was said meanwhile.
    async fn is_open(&mut self) -> bool {
        loop {
            tokio::select! {
                biased;
                message = self.message(wire::message) => if message.is_none() { return false },
                () = std::future::ready(()) => return true,
            }
        }
    }

    async fn read(&mut self) -> Option<()> {
        self.unread.reserve(8_192);
        self.stream.read_buf(&mut self.unread).await.ok().filter(|length| *length > 0).map(drop)
    }

    async fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).await.ok()
    }
}
