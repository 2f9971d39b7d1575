//! A client: one connection, one request at a time.

use std::{net::SocketAddr, time::Duration};

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// How long an answer may take before the run fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// One intent: a key, and who owns it.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    pub(crate) key: String,
    pub(crate) owner: String,
}

impl Intent {
    /// The `number`th of this process, with a key in the form and the disorder of a random one.
    pub(crate) fn new(number: u64, owner: String) -> Self {
        // SplitMix64: a bijection, so that no two are equal.
        let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Self { key: format!("{mixed:016x}-4000-8000-{number:012x}"), owner }
    }

    /// A session identifier of 128 bits in base64url: only `axum-idempotent` looks at it.
    fn session(&self) -> String {
        format!("session={}A", &self.key[..21])
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) replayed: bool,
    pub(crate) body: Bytes,
}

#[derive(Debug)]
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    body: Bytes,
}

impl Client {
    /// Connects; every request will have this body.
    pub(crate) async fn connect(address: SocketAddr, body: Bytes) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server takes connections");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        // It ends with the sender.
        tokio::spawn(connection);
        Self { sender, body }
    }

    pub(crate) async fn ask(&mut self, intent: &Intent) -> Answer {
        let request = Request::post("/charges")
            .header("host", "localhost")
            .header("content-type", "application/octet-stream")
            .header("idempotency-key", &intent.key)
            .header("x-owner", &intent.owner)
            .header("cookie", intent.session())
            .body(Full::new(self.body.clone()))
            .expect("a request");
        let asking = async {
            self.sender.ready().await.expect("the connection is there");
            let response = self.sender.send_request(request).await.expect("an answer");
            let status = response.status();
            let replayed = ["idempotent-replayed", "idempotency-replayed"]
                .iter()
                .any(|name| response.headers().contains_key(*name));
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            Answer { status, replayed, body }
        };
        timeout(PATIENCE, asking).await.expect("an answer in time")
    }
}
