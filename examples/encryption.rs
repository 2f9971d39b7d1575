//! Stored answers are encrypted, with keys that change: AES-256-GCM, bound to the row they belong to.
//!
//! ```sh
//! cargo run --example encryption             # serves until Ctrl-C
//! cargo run --example encryption -- --check  # stores, rotates, replays, and shows what lies in the table
//! ```

use std::{collections::BTreeMap, error::Error};

use aes_gcm::{
    Aes256Gcm, KeyInit as _, Nonce,
    aead::{Aead as _, Generate as _, Payload},
};
use axum::{
    BoxError, Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
    routing::post,
};
use axum_idempotency::{BodyCodec, Idempotency, IdempotencyLayer, IdempotentRequest, Scope};
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt as _;

/// Keys by number. New bodies are encrypted under the highest; a row names the one that it needs, so an old key stays
/// until the last row under it has expired.
#[derive(Clone)]
pub(crate) struct Keyring(BTreeMap<u8, [u8; 32]>);

const NONCE: usize = 12;

impl Keyring {
    pub(crate) fn new(keys: impl IntoIterator<Item = (u8, [u8; 32])>) -> Self {
        Self(keys.into_iter().collect())
    }

    /// What a body is bound to: put into another row, it cannot be read.
    fn row(request: &IdempotentRequest) -> String {
        request.derive_key("body encryption")
    }
}

impl BodyCodec for Keyring {
    fn encode(&self, request: &IdempotentRequest, body: &[u8]) -> Result<Vec<u8>, BoxError> {
        let (number, key) = self.0.last_key_value().ok_or("there is no key")?;
        let nonce = Nonce::generate();
        let row = Self::row(request);
        let sealed = Aes256Gcm::new(key.into())
            .encrypt(&nonce, Payload { msg: body, aad: row.as_bytes() })
            .map_err(|_| "encryption failed")?;
        Ok([&[*number][..], &nonce, &sealed].concat())
    }

    fn decode(&self, request: &IdempotentRequest, stored: &[u8]) -> Result<Vec<u8>, BoxError> {
        let (number, rest) = stored.split_first().ok_or("there is nothing to decrypt")?;
        let key = self.0.get(number).ok_or("the key of this body is gone")?;
        let (nonce, sealed) = rest.split_at_checked(NONCE).ok_or("the body is cut off")?;
        let nonce = Nonce::try_from(nonce)?;
        let row = Self::row(request);
        let opened = Aes256Gcm::new(key.into()).decrypt(&nonce, Payload { msg: sealed, aad: row.as_bytes() });
        opened.map_err(|_| "the body was changed, or belongs to another row".into())
    }
}

/// One route, whose answer is nobody's business.
pub(crate) fn app(idempotency: Idempotency, keys: Keyring) -> Router {
    let idempotent = IdempotencyLayer::new(idempotency, |_| Some(Scope::global())).with_body_codec(keys);
    Router::new().route("/tokens", post(async || (StatusCode::CREATED, "token-4711")).layer(idempotent))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPoolOptions::new().connect(&throwaway_postgres::database_url()?).await?;
    axum_idempotency::migrate(&pool).await?;
    let idempotency = Idempotency::new(&pool);
    if std::env::args().any(|argument| argument == "--check") {
        return check(idempotency).await;
    }
    // Keys belong into a secret store; these are for show.
    let app = app(idempotency, Keyring::new([(1, [1; 32])]));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; try  curl -X POST -H 'idempotency-key: 1' http://{address}/tokens");
    Ok(axum::serve(listener, app).await?)
}

pub(crate) async fn check(idempotency: Idempotency) -> Result<(), Box<dyn Error>> {
    let key = format!("encrypted-{}", std::process::id());
    let old = Keyring::new([(1, [1; 32])]);
    let rotated = Keyring::new([(1, [1; 32]), (2, [2; 32])]);
    let forgotten = Keyring::new([(2, [2; 32])]);

    assert_eq!(ask(&app(idempotency.clone(), old), &key).await?, (201, "token-4711".to_owned()));
    let stored: Vec<u8> = sqlx::query_scalar("select body from idempotency.keys where key = $1")
        .bind(&key)
        .fetch_one(idempotency.pool())
        .await?;
    assert!(!stored.windows(5).any(|part| part == b"token"), "the table does not hold the answer");
    println!("stored: {} bytes, none of them readable", stored.len());

    assert_eq!(ask(&app(idempotency.clone(), rotated), &key).await?, (201, "token-4711".to_owned()));
    println!("replayed after the keys were rotated");
    assert_eq!(ask(&app(idempotency, forgotten), &key).await?.0, 500);
    println!("refused without the old key, and not executed again");
    Ok(())
}

async fn ask(app: &Router, key: &str) -> Result<(u16, String), Box<dyn Error>> {
    let request = Request::post("/tokens").header("idempotency-key", key).body(Body::empty())?;
    let response = app.clone().oneshot(request).await?;
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 10_000).await?;
    Ok((status, String::from_utf8(body.to_vec())?))
}
