use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
};

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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let armed = Arc::new(AtomicBool::new(false));
    let (server, flag) = (options.clone(), armed.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay(client, server.clone(), cut, flag.clone()));
        }
    });
    (options.socket_is_not_used().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable), armed)
}

trait WithoutSocket {
    fn socket_is_not_used(self) -> Self;
}

impl WithoutSocket for PgConnectOptions {
    /// sqlx cannot take a socket back: start from nothing.
    fn socket_is_not_used(self) -> Self {
        Self::new_without_pgpass().username(self.get_username()).database(self.get_database().unwrap_or("postgres"))
    }
}

async fn relay(client: TcpStream, server: PgConnectOptions, cut: Cut, armed: Arc<AtomicBool>) {
    match server.get_socket() {
        Some(folder) => {
            let socket = folder.join(format!(".s.PGSQL.{}", server.get_port()));
            pump(client, UnixStream::connect(socket).await.unwrap(), cut, &armed).await;
        }
        None => {
            let stream = TcpStream::connect((server.get_host(), server.get_port())).await.unwrap();
            pump(client, stream, cut, &armed).await;
        }
    }
}

/// Ends, and with it both connections, where it is to be cut.
async fn pump(mut client: TcpStream, mut server: impl AsyncRead + AsyncWrite + Unpin, cut: Cut, armed: &AtomicBool) {
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    let mut committing = false;
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(length @ 1..) = read else { return };
                let message = &up[..length];
                if message.windows(7).any(|part| part == b"COMMIT\0") && armed.swap(false, Ordering::SeqCst) {
                    match cut {
                        Cut::BeforeCommit => return,
                        Cut::AfterCommit => committing = true,
                    }
                }
                if server.write_all(message).await.is_err() { return }
            }
            read = server.read(&mut down) => {
                let Ok(length @ 1..) = read else { return };
                // Its answer: the commit has happened.
                if committing { return }
                if client.write_all(&down[..length]).await.is_err() { return }
            }
        }
    }
}
