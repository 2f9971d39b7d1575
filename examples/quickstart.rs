//! The guarantee at work: a server on loopback, its own database, and what happens to a charge that is retried.
//!
//! ```sh
//! cargo run --example quickstart             # shows it, then goes on serving
//! cargo run --example quickstart -- --check  # shows it and ends
//! ```

#![allow(clippy::panic, clippy::must_use_candidate)] // Crashing is one of the things it shows.

use std::{error::Error, time::Duration};

use axum::{
    Json, Router,
    http::{HeaderMap, StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Rejection, Scope, Tx};
use reqwest::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tower_http::catch_panic::CatchPanicLayer;

/// One route: charge an account.
pub(crate) fn app(pool: &PgPool) -> Router {
    let idempotent = IdempotencyLayer::new(Idempotency::new(pool), owner);
    Router::new()
        .route("/charges", post(charge).layer(idempotent.operation("charge.create")))
        .layer(CatchPanicLayer::new())
}

/// Here the owner of a key is whoever the header says; with you, it is what your authentication found out.
fn owner(parts: &Parts) -> Option<Scope> {
    parts.headers.get("x-tenant")?.to_str().ok().map(Scope::new)
}

#[derive(Deserialize)]
struct NewCharge {
    account: String,
    amount: i64,
}

async fn charge(mut tx: Tx, headers: HeaderMap, Json(new): Json<NewCharge>) -> Result<Response, Rejection> {
    // A relative write: if the handler ran twice, the balance would show it.
    let balance: Option<i64> = sqlx::query_scalar(
        "update quickstart.account set balance = balance - $2 where id = $1 and balance >= $2 returning balance",
    )
    .bind(&new.account)
    .bind(new.amount)
    .fetch_optional(&mut tx)
    .await?;
    if headers.contains_key("x-crash") {
        panic!("a crash, after the money has moved");
    }
    Ok(match balance {
        Some(balance) => {
            (StatusCode::CREATED, Json(json!({ "charged": new.amount, "balance": balance }))).into_response()
        }
        None => (StatusCode::PAYMENT_REQUIRED, Json(json!({ "error": "funds are short" }))).into_response(),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPoolOptions::new().connect(&throwaway_postgres::database_url()?).await?;
    let account = prepare(&pool).await?;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/charges", listener.local_addr()?);
    let server = tokio::spawn(axum::serve(listener, app(&pool)).into_future());

    // The crash below is meant; its backtrace would only hide the transcript.
    std::panic::set_hook(Box::new(|_| {}));
    show(&Visitor::new(&url, &account, &pool)).await?;
    drop(std::panic::take_hook());

    if std::env::args().any(|argument| argument == "--check") {
        return Ok(());
    }
    println!("Still serving. Try it yourself, twice, and then with another amount (Ctrl-C ends it):\n");
    println!("  curl -i {url} -H 'x-tenant: you' -H 'content-type: application/json' \\");
    println!("       -H 'idempotency-key: my-first-key' -d '{{\"account\":\"{account}\",\"amount\":5}}'");
    server.await??;
    Ok(())
}

/// The tables, and an account of this run with 100 in it.
pub(crate) async fn prepare(pool: &PgPool) -> Result<String, Box<dyn Error>> {
    axum_idempotency::migrate(pool).await?;
    sqlx::raw_sql(
        "create schema if not exists quickstart;
         create table if not exists quickstart.account (id text primary key, balance bigint not null);",
    )
    .execute(pool)
    .await?;
    let id = sqlx::query_scalar("insert into quickstart.account values (gen_random_uuid()::text, 100) returning id")
        .fetch_one(pool)
        .await?;
    Ok(id)
}

/// The transcript, each step checked.
pub(crate) async fn show(visitor: &Visitor<'_>) -> Result<(), Box<dyn Error>> {
    println!("The account holds {}.\n", visitor.balance().await?);

    let first = visitor.step("A charge of 30", "key-1", 30, &[]).await?;
    first.expect(201, false, 70)?;

    let retry = visitor.step("Its retry: the stored answer, byte for byte", "key-1", 30, &[]).await?;
    retry.expect(201, true, 70)?;
    ensure(retry.body == first.body, "the bodies are equal")?;

    visitor.step("The same key with another amount", "key-1", 31, &[]).await?.expect(422, false, 70)?;

    println!("100 duplicates of a charge of 20, all at once");
    let duplicates: Vec<_> = (0..100).map(|_| visitor.request("key-2", 20, &[])).collect();
    let duplicates = futures(duplicates).await?;
    let replayed = duplicates.iter().filter(|answer| answer.replayed).count();
    ensure(duplicates.iter().all(|answer| answer.status == 201 && answer.body == duplicates[0].body), "all are equal")?;
    ensure(replayed == 99, "one executed")?;
    let balance = visitor.balance().await?;
    ensure(balance == 50, "the balance moved once")?;
    println!(
        "  → 100 times {} {}\n    1 executed, {replayed} replayed; the balance is {balance}\n",
        201, duplicates[0].body
    );

    visitor.step("A charge that is declined", "key-3", 1_000, &[]).await?.expect(402, false, 50)?;
    visitor.step("Its retry: a decision that stands", "key-3", 1_000, &[]).await?.expect(402, true, 50)?;

    let crash = [("x-crash", "yes")];
    visitor
        .step("A crash in the handler, after the money has moved", "key-4", 10, &crash)
        .await?
        .expect(500, false, 50)?;
    visitor.step("Its retry: nothing was kept, so it executes", "key-4", 10, &[]).await?.expect(201, false, 40)?;
    Ok(())
}

/// A client, and where it looks what became of the money.
pub(crate) struct Visitor<'a> {
    client: Client,
    url: &'a str,
    account: &'a str,
    pool: &'a PgPool,
}

struct Answer {
    status: u16,
    replayed: bool,
    body: String,
    balance: i64,
}

impl<'a> Visitor<'a> {
    pub(crate) fn new(url: &'a str, account: &'a str, pool: &'a PgPool) -> Self {
        let client = Client::new();
        Self { client, url, account, pool }
    }

    async fn balance(&self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("select balance from quickstart.account where id = $1")
            .bind(self.account)
            .fetch_one(self.pool)
            .await
    }

    /// Keys are the tenant's own: this run's tenant is its account.
    fn request(&self, key: &str, amount: i64, headers: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let request = self
            .client
            .post(self.url)
            .timeout(Duration::from_secs(30))
            .header("x-tenant", self.account)
            .header("idempotency-key", key)
            .json(&json!({ "account": self.account, "amount": amount }));
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    }

    async fn step(
        &self,
        what: &str,
        key: &str,
        amount: i64,
        headers: &[(&str, &str)],
    ) -> Result<Answer, Box<dyn Error>> {
        let mut answer = read(self.request(key, amount, headers)).await?;
        answer.balance = self.balance().await?;
        let marker = if answer.replayed { " (Idempotent-Replayed: true)" } else { "" };
        println!("{what}\n  POST /charges  Idempotency-Key: {key}  amount {amount}");
        println!("  → {} {}{marker}\n    the balance is {}\n", answer.status, shortened(&answer.body), answer.balance);
        Ok(answer)
    }
}

impl Answer {
    fn expect(&self, status: u16, replayed: bool, balance: i64) -> Result<(), Box<dyn Error>> {
        let got = (self.status, self.replayed, self.balance);
        ensure(got == (status, replayed, balance), &format!("expected {:?}, got {got:?}", (status, replayed, balance)))
    }
}

async fn read(request: reqwest::RequestBuilder) -> Result<Answer, reqwest::Error> {
    let response = request.send().await?;
    Ok(Answer {
        status: response.status().as_u16(),
        replayed: response.headers().get("idempotent-replayed").is_some_and(|marker| marker == "true"),
        body: response.text().await?,
        balance: 0,
    })
}

/// All at once.
async fn futures(requests: Vec<reqwest::RequestBuilder>) -> Result<Vec<Answer>, Box<dyn Error>> {
    let tasks: Vec<_> = requests.into_iter().map(|request| tokio::spawn(read(request))).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await??);
    }
    Ok(answers)
}

/// Of a problem document, its title: the rest is for programs.
fn shortened(body: &str) -> String {
    match serde_json::from_str::<Value>(body) {
        Ok(problem) if problem.get("type").is_some() => problem["title"].as_str().unwrap_or_default().to_owned(),
        _ => body.to_owned(),
    }
}

fn ensure(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("this does not hold: {what}").into()) }
}
