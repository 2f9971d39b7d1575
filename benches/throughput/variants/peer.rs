//! The crate `axum-idempotent`: answers are kept in a session store, apart from the handler's transaction.
//!
//! It keeps nothing for a client without a session, so every request brings one. At each write it goes through all keys
//! of the session; here each key has a session of its own, which is its cheapest case.

use std::{error::Error, sync::Arc};

use axum::{Router, routing::post};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use fred::{
    clients::Client,
    interfaces::ClientLike as _,
    types::{Builder, config::Config},
};
use ruts::{
    CookieOptions, SessionLayer,
    store::{SessionStore, moka::MokaStore, redis::RedisStore},
};
use tower_cookies::CookieManagerLayer;

use super::plain;
use crate::work::Stage;

/// With the store in this process's memory, which forgets with it.
pub(super) fn in_memory(stage: Stage) -> Router {
    // The default, 10,000 sessions, would have it forget during a run.
    router(stage, MokaStore::builder().max_capacity(1_000_000).build())
}

/// With the store in Redis.
pub(super) async fn in_redis(stage: Stage, url: &str) -> Result<Router, Box<dyn Error>> {
    let client: Client = Builder::from_config(Config::from_url(url)?).build()?;
    client.init().await?;
    Ok(router(stage, RedisStore::new(Arc::new(client)).await?))
}

fn router<S: SessionStore>(stage: Stage, store: S) -> Router {
    let options = IdempotentOptions::new(24 * 60 * 60).use_idempotency_key_header(None, true);
    let session = CookieOptions::build().name("session").max_age(24 * 60 * 60).path("/");
    Router::new()
        .route("/charges", post(plain::bare))
        .with_state(stage)
        .layer(IdempotentLayer::<S>::new(options))
        .layer(SessionLayer::new(Arc::new(store)).with_cookie_options(session))
        .layer(CookieManagerLayer::new())
}
