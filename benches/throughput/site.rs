//! A variant as it stands for one scenario: its server, its clients and the keys that have been used.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{Router, http::StatusCode, serve::ListenerExt as _};
use bytes::Bytes;
use sqlx::PgPool;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    client::{Answer, Client, Intent},
    variants::Variant,
    work::{Stage, Work},
};

/// Numbers for keys that nobody has used.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) variant: Variant,
    pub(crate) work: Arc<Work>,
    pub(crate) address: SocketAddr,
    pub(crate) request: Bytes,
    /// Intents that were answered, and how.
    pub(crate) answered: Arc<Vec<(Intent, Bytes)>>,
    servers: Vec<JoinHandle<()>>,
}

impl Site {
    pub(crate) async fn start(
        variant: Variant,
        pool: PgPool,
        work: Arc<Work>,
        request_bytes: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let stage = Stage { pool, work: work.clone() };
        let (address, server) = serve(variant.router(stage).await?).await?;
        let request = vec![b'r'; request_bytes].into();
        Ok(Self { variant, work, address, request, answered: Arc::default(), servers: vec![server] })
    }

    /// Uses `count` keys for the first time, so that they can be replayed.
    pub(crate) async fn answer(&mut self, pool: PgPool, count: usize) -> Result<(), Box<dyn Error>> {
        let mut address = self.address;
        if let Some(router) = self.variant.first_router(Stage { pool, work: self.work.clone() }) {
            let (first, server) = serve(router).await?;
            self.servers.push(server);
            address = first;
        }
        let mut client = Client::connect(address, self.request.clone()).await;
        let mut answered = Vec::with_capacity(count);
        for number in 0..count {
            let intent = fresh(format!("owner-{number}"));
            let answer = client.ask(&intent).await;
            self.check_first(&answer);
            answered.push((intent, answer.body));
        }
        self.answered = Arc::new(answered);
        Ok(())
    }

    pub(crate) async fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(Client::connect(self.address, self.request.clone()).await);
        }
        clients
    }

    pub(crate) fn executed(&self) -> u64 {
        self.work.executed.load(Ordering::SeqCst)
    }

    pub(crate) fn check_first(&self, answer: &Answer) {
        let Answer { status, replayed, body } = answer;
        let name = self.variant.name();
        assert_eq!(*status, StatusCode::CREATED, "{name}: {}", String::from_utf8_lossy(body));
        assert!(!replayed, "{name}: a first call says that it is a replay");
        assert_eq!(body.len(), self.work.response_bytes, "{name}: a body of another length");
    }

    pub(crate) fn check_replay(&self, answer: &Answer, expected: &Bytes) {
        let Answer { status, replayed, body } = answer;
        let name = self.variant.name();
        assert_eq!(*status, StatusCode::CREATED, "{name}: {}", String::from_utf8_lossy(body));
        assert_eq!(*replayed, self.variant.marks_replays(), "{name}: the marker of replays");
        assert_eq!(body, expected, "{name}: another body than at first");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for server in &self.servers {
            server.abort();
        }
    }
}

pub(crate) fn fresh(owner: String) -> Intent {
    Intent::new(NUMBERS.fetch_add(1, Ordering::Relaxed), owner)
}

async fn serve(router: Router) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("TCP_NODELAY"));
    let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("the server runs") });
    Ok((address, server))
}
