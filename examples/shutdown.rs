//! A shutdown that finishes what was begun: first the server stops, then the attempts whose clients have gone away
//! are waited for.
//!
//! ```sh
//! cargo run --example shutdown             # serves until Ctrl-C
//! cargo run --example shutdown -- --check  # asks itself, gives up, shuts down, and looks what became of it
//! ```

use std::{error::Error, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use axum_idempotency::{Idempotency, IdempotencyLayer, Scope, Tx};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::net::TcpListener;

/// How long the last requests may take after the server has stopped: less than what the orchestrator allows.
const LIMIT: Duration = Duration::from_secs(20);

/// A route that takes a while.
pub(crate) fn app(idempotency: Idempotency) -> Router {
    let idempotent = IdempotencyLayer::new(idempotency, |_| Some(Scope::global()));
    Router::new().route("/work", post(work).layer(idempotent))
}

async fn work(mut tx: Tx) -> Result<StatusCode, StatusCode> {
    let done = sqlx::query("insert into shutdown.work default values").execute(&mut tx).await;
    done.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(StatusCode::CREATED)
}

/// Serves until `stop`, and returns how many requests were left unfinished.
pub(crate) async fn serve(
    listener: TcpListener,
    idempotency: Idempotency,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<usize> {
    axum::serve(listener, app(idempotency.clone())).with_graceful_shutdown(stop).await?;
    // No connection is left now. A request whose client had gone away before goes on by itself.
    let left = idempotency.drain(LIMIT).await;
    idempotency.pool().close().await;
    Ok(left)
}

/// The tables.
pub(crate) async fn prepare(pool: &PgPool) -> Result<(), Box<dyn Error>> {
    axum_idempotency::migrate(pool).await?;
    sqlx::raw_sql(
        "create schema if not exists shutdown;
         create table if not exists shutdown.work (id bigint generated always as identity)",
    )
    .execute(pool)
    .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = throwaway_postgres::database_url()?;
    let pool = PgPoolOptions::new().connect(&url).await?;
    prepare(&pool).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let idempotency = Idempotency::new(&pool);

    if std::env::args().any(|argument| argument == "--check") {
        return check(listener, idempotency, &url).await;
    }
    println!("listening on http://{address}; try  curl -X POST -H 'idempotency-key: 1' http://{address}/work");
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    let left = serve(listener, idempotency, stop).await?;
    println!("{left} requests were left unfinished");
    Ok(())
}

/// A client that gives up at once, and a shutdown right after.
pub(crate) async fn check(listener: TcpListener, idempotency: Idempotency, url: &str) -> Result<(), Box<dyn Error>> {
    let work = format!("http://{}/work", listener.local_addr()?);
    let key = format!("{}", std::process::id());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, idempotency, async { drop(stopped.await) }));

    let client = reqwest::Client::builder().timeout(Duration::from_millis(300)).build()?;
    let given_up = client.post(work).header("idempotency-key", &key).send().await;
    assert!(given_up.is_err_and(|error| error.is_timeout()), "the client gives up before the work is done");
    stop.send(()).map_err(|()| "the server has stopped already")?;
    assert_eq!(server.await??, 0, "nothing is left unfinished");

    let pool = PgPool::connect(url).await?;
    let status: Option<i16> = sqlx::query_scalar("select status from idempotency.keys where key = $1")
        .bind(&key)
        .fetch_optional(&pool)
        .await?
        .flatten();
    assert_eq!(status, Some(201), "its answer is there for a retry");
    println!("the client gave up, the server stopped, and the work was finished: status {status:?} is stored");
    Ok(())
}
