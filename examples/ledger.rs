//! A server for experiments: accounts, charges and refunds, and headers that make the handler misbehave.
//!
//! ```sh
//! cargo run --example ledger -- --listen 127.0.0.1:3000
//! ```
//!
//! It prints `listening on http://ADDRESS` and `DATABASE_URL=…`. Start a second one with that `DATABASE_URL` to have
//! two processes on one database. Without `DATABASE_URL` it starts a throwaway server.
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `--listen ADDRESS:PORT` | where to listen; port 0 takes a free one | `127.0.0.1:0` |
//! | `--concurrency wait:SECONDS` or `reject` | duplicates of a running request | `wait:5` |
//! | `--retention SECONDS` | how long keys are remembered; duplicates wait for half of that at most | `86400` |
//! | `--keys KIND:SECONDS` | keys bear their time, and this is the window; KIND is `uuid-v7`, `ulid` or `first-sent` (in `Repeatability-First-Sent`, with the key in `Repeatability-Request-ID`); duplicates wait for half of it at most | any key |
//! | `--partitioned` | such keys, `uuid-v7` or `ulid`, are kept in partitions by their time | |
//! | `--pool N` | connections to the database | `10` |
//! | `--self-check` | make a few requests to itself, check the answers, and end; not with `--keys` | |
//!
//! Nothing is pruned.
//!
//! Every request needs `Authorization: Bearer NAME`; NAME is the owner, of accounts and of keys.
//!
//! | request | answer |
//! |---|---|
//! | `POST /accounts {"id","balance"}` (key optional) | 201 `{"id","balance"}`; 409 if the owner has it already |
//! | `GET /accounts/{id}` | 200 `{"id","balance","charges"}`; `charges` is how many there are |
//! | `POST /charges {"account","amount"}` (key required) | 201 `{"id","account","amount","balance"}`; 402 if funds are short; 404 |
//! | `POST /charges/{id}/refund` (key required) | 201 `{"id","account","amount","balance"}`; 404; 409 if refunded before |
//!
//! Amounts are whole numbers, and a charge's amount has to be positive (400).
//!
//! Two headers steer `POST /charges`, each after the money has moved:
//!
//! | header | effect |
//! |---|---|
//! | `x-lab-delay-ms: N` | the handler sleeps so long, inside its transaction |
//! | `x-lab-fault: panic` | it panics |
//! | `x-lab-fault: 500` | it answers 500 |
//! | `x-lab-fault: swallow-sql-error` | a statement fails, and it answers 201 all the same |
//! | `x-lab-fault: hold-connection` | it answers 201 while a task holds its `Tx` for another second |
//! | `x-lab-fault: big-body:BYTES` | it answers 201 with so many bytes |
//! | `x-lab-fault: status:CODE` | it answers with that status |

#![allow(clippy::panic, clippy::must_use_candidate)] // Crashing is one of the things it shows.

use std::{error::Error, io::Write as _, net::SocketAddr, str::FromStr, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Path, Request},
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_idempotency::{Concurrency, Idempotency, IdempotencyLayer, Retention, Scope, TimestampedKeys, Tx};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};
use tower_http::catch_panic::CatchPanicLayer;

/// Whoever the bearer token names.
#[derive(Clone)]
pub(crate) struct Owner(String);

#[derive(Deserialize)]
struct NewAccount {
    id: String,
    balance: i64,
}

#[derive(Deserialize)]
struct NewCharge {
    account: String,
    amount: i64,
}

#[derive(Serialize)]
struct Charge {
    id: i64,
    account: String,
    amount: i64,
    balance: i64,
}

/// The routes, on a database that [`prepare`] has prepared.
pub(crate) fn app(idempotency: Idempotency) -> Router {
    let pool = idempotency.pool().clone();
    // An experiment's handler may hang, and its windows may be short: the default limit would lengthen those.
    let idempotent =
        IdempotencyLayer::new(idempotency, |parts| parts.extensions.get::<Owner>().map(|owner| Scope::new(&owner.0)))
            .handler_timeout(None);
    Router::new()
        .route("/accounts", post(open_account).layer(idempotent.clone().operation("account.open").optional()))
        .route("/accounts/{id}", get(show_account))
        .route("/charges", post(charge).layer(idempotent.clone().operation("charge.create")))
        .route("/charges/{id}/refund", post(refund).layer(idempotent.operation("charge.refund")))
        .layer(CatchPanicLayer::new())
        .layer(from_fn(authenticate))
        .layer(Extension(pool))
}

/// The tables, whoever comes first.
pub(crate) async fn prepare(pool: &PgPool) -> Result<(), Box<dyn Error>> {
    axum_idempotency::migrate(pool).await?;
    let mut transaction = pool.begin().await?;
    // Two servers may start at once, and `if not exists` alone does not make that safe.
    sqlx::query("select pg_advisory_xact_lock(7236151)").execute(&mut *transaction).await?;
    sqlx::raw_sql(
        "create table if not exists account (
             owner text not null, id text not null, balance bigint not null check (balance >= 0),
             primary key (owner, id));
         create table if not exists charge (
             id bigint generated always as identity primary key,
             owner text not null, account text not null, amount bigint not null, refunded boolean not null default false,
             foreign key (owner, account) references account);",
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match token.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim) {
        Some(name) if !name.is_empty() => {
            let owner = Owner(name.to_owned());
            request.extensions_mut().insert(owner);
            next.run(request).await
        }
        _ => Failure(StatusCode::UNAUTHORIZED, "say who you are: Authorization: Bearer NAME").into_response(),
    }
}

async fn open_account(
    mut tx: Tx,
    Extension(owner): Extension<Owner>,
    Json(new): Json<NewAccount>,
) -> Result<impl IntoResponse, Failure> {
    let opened = sqlx::query("insert into account (owner, id, balance) values ($1, $2, $3) on conflict do nothing")
        .bind(&owner.0)
        .bind(&new.id)
        .bind(new.balance)
        .execute(&mut tx)
        .await?;
    if opened.rows_affected() == 0 {
        return Err(Failure(StatusCode::CONFLICT, "there is such an account already"));
    }
    Ok((StatusCode::CREATED, Json(json!({ "id": new.id, "balance": new.balance }))))
}

async fn show_account(
    Extension(pool): Extension<PgPool>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, Failure> {
    let found: Option<(i64, i64)> = sqlx::query_as(
        "select balance, (select count(*) from charge where owner = $1 and account = $2)
           from account where owner = $1 and id = $2",
    )
    .bind(&owner.0)
    .bind(&id)
    .fetch_optional(&pool)
    .await?;
    let (balance, charges) = found.ok_or(NO_ACCOUNT)?;
    Ok(Json(json!({ "id": id, "balance": balance, "charges": charges })))
}

async fn charge(
    mut tx: Tx,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Json(new): Json<NewCharge>,
) -> Result<Response, Failure> {
    if new.amount <= 0 {
        return Err(Failure(StatusCode::BAD_REQUEST, "the amount has to be positive"));
    }
    let fault = Fault::read(&headers)?;
    let delay = header(&headers, "x-lab-delay-ms")?.unwrap_or(0);

    // A relative write: done twice, it would show.
    let balance: Option<i64> = sqlx::query_scalar(
        "update account set balance = balance - $3 where owner = $1 and id = $2 and balance >= $3 returning balance",
    )
    .bind(&owner.0)
    .bind(&new.account)
    .bind(new.amount)
    .fetch_optional(&mut tx)
    .await?;
    let Some(balance) = balance else {
        return Err(refusal(&mut tx, &owner, &new.account).await?);
    };
    let id: i64 = sqlx::query_scalar("insert into charge (owner, account, amount) values ($1, $2, $3) returning id")
        .bind(&owner.0)
        .bind(&new.account)
        .bind(new.amount)
        .fetch_one(&mut tx)
        .await?;

    tokio::time::sleep(Duration::from_millis(delay)).await;
    let charge = Charge { id, account: new.account, amount: new.amount, balance };
    Ok(fault.answer(tx, (StatusCode::CREATED, Json(charge)).into_response()).await)
}

async fn refusal(tx: &mut PgConnection, owner: &Owner, account: &str) -> Result<Failure, sqlx::Error> {
    let known: bool = sqlx::query_scalar("select exists (select from account where owner = $1 and id = $2)")
        .bind(&owner.0)
        .bind(account)
        .fetch_one(tx)
        .await?;
    Ok(if known { Failure(StatusCode::PAYMENT_REQUIRED, "funds are short") } else { NO_ACCOUNT })
}

async fn refund(
    mut tx: Tx,
    Extension(owner): Extension<Owner>,
    Path(id): Path<i64>,
) -> Result<impl IntoResponse, Failure> {
    let refunded: Option<(String, i64)> = sqlx::query_as(
        "update charge set refunded = true where owner = $1 and id = $2 and not refunded returning account, amount",
    )
    .bind(&owner.0)
    .bind(id)
    .fetch_optional(&mut tx)
    .await?;
    let Some((account, amount)) = refunded else {
        let known: bool = sqlx::query_scalar("select exists (select from charge where owner = $1 and id = $2)")
            .bind(&owner.0)
            .bind(id)
            .fetch_one(&mut tx)
            .await?;
        return Err(if known {
            Failure(StatusCode::CONFLICT, "it was refunded before")
        } else {
            Failure(StatusCode::NOT_FOUND, "there is no such charge")
        });
    };
    let balance: i64 =
        sqlx::query_scalar("update account set balance = balance + $3 where owner = $1 and id = $2 returning balance")
            .bind(&owner.0)
            .bind(&account)
            .bind(amount)
            .fetch_one(&mut tx)
            .await?;
    Ok((StatusCode::CREATED, Json(Charge { id, account, amount, balance })))
}

/// How a charge is to go wrong.
enum Fault {
    None,
    Panic,
    SwallowSqlError,
    HoldConnection,
    BigBody(usize),
    Status(StatusCode),
}

impl Fault {
    fn read(headers: &HeaderMap) -> Result<Self, Failure> {
        let unknown = || Failure(StatusCode::BAD_REQUEST, "x-lab-fault is none of those that are documented");
        let Some(fault) = header::<String>(headers, "x-lab-fault")? else {
            return Ok(Self::None);
        };
        Ok(match fault.split_once(':') {
            None => match fault.as_str() {
                "panic" => Self::Panic,
                "500" => Self::Status(StatusCode::INTERNAL_SERVER_ERROR),
                "swallow-sql-error" => Self::SwallowSqlError,
                "hold-connection" => Self::HoldConnection,
                _ => return Err(unknown()),
            },
            Some(("big-body", bytes)) => Self::BigBody(bytes.parse().map_err(|_| unknown())?),
            Some(("status", code)) => Self::Status(code.parse().map_err(|_| unknown())?),
            Some(_) => return Err(unknown()),
        })
    }

    async fn answer(self, mut tx: Tx, charged: Response) -> Response {
        match self {
            Self::None => charged,
            Self::Panic => panic!("x-lab-fault: panic"),
            Self::SwallowSqlError => {
                let failed = sqlx::query("select 1 / 0").execute(&mut tx).await;
                assert!(failed.is_err(), "a division by zero fails");
                charged
            }
            Self::HoldConnection => {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    drop(tx);
                });
                charged
            }
            Self::BigBody(bytes) => (StatusCode::CREATED, vec![b'x'; bytes]).into_response(),
            Self::Status(status) => (status, "as x-lab-fault says").into_response(),
        }
    }
}

fn header<T: FromStr>(headers: &HeaderMap, name: &str) -> Result<Option<T>, Failure> {
    headers
        .get(name)
        .map(|value| value.to_str().ok().and_then(|text| text.parse().ok()))
        .map(|value| value.ok_or(Failure(StatusCode::BAD_REQUEST, "an x-lab header cannot be read")))
        .transpose()
}

/// What is answered instead.
struct Failure(StatusCode, &'static str);

const NO_ACCOUNT: Failure = Failure(StatusCode::NOT_FOUND, "there is no such account");

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        eprintln!("a statement failed: {error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "a statement failed")
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// What the command line says.
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) concurrency: Concurrency,
    pub(crate) retention: Retention,
    pub(crate) keys: Option<TimestampedKeys>,
    pub(crate) partitioned: bool,
    pub(crate) pool: u32,
    pub(crate) self_check: bool,
}

impl Settings {
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut settings = Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            concurrency: Concurrency::default(),
            retention: Retention::default(),
            keys: None,
            partitioned: false,
            pool: 10,
            self_check: false,
        };
        while let Some(option) = arguments.next() {
            match option.as_str() {
                "--self-check" => settings.self_check = true,
                "--partitioned" => settings.partitioned = true,
                _ => settings.set(&option, arguments.next())?,
            }
        }
        Ok(settings)
    }

    fn set(&mut self, option: &str, value: Option<String>) -> Result<(), Box<dyn Error>> {
        let value = value.ok_or_else(|| format!("{option} needs a value, or is unknown"))?;
        match option {
            "--listen" => self.listen = value.parse()?,
            "--pool" => self.pool = value.parse::<std::num::NonZeroU32>()?.get(),
            "--retention" => self.retention = Retention::new(seconds(&value)?)?,
            "--keys" => {
                self.keys = Some(match value.split_once(':') {
                    Some(("uuid-v7", window)) => TimestampedKeys::uuid_v7(seconds(window)?)?,
                    Some(("ulid", window)) => TimestampedKeys::ulid(seconds(window)?)?,
                    Some(("first-sent", window)) => TimestampedKeys::first_sent(seconds(window)?)?,
                    _ => return Err("--keys is uuid-v7:SECONDS, ulid:SECONDS or first-sent:SECONDS".into()),
                });
            }
            "--concurrency" => {
                self.concurrency = match value.split_once(':') {
                    None if value == "reject" => Concurrency::NoWait,
                    Some(("wait", time)) => Concurrency::Wait { timeout: seconds(time)? },
                    _ => return Err("--concurrency is wait:SECONDS or reject".into()),
                }
            }
            _ => return Err(format!("{option} is unknown; see the top of examples/ledger.rs").into()),
        }
        Ok(())
    }

    /// A duplicate must not wait until its key is forgotten, so short windows shorten the wait.
    pub(crate) fn idempotency(&self, pool: &PgPool) -> Result<Idempotency, Box<dyn Error>> {
        let windows = [self.retention.window(), self.keys.map(TimestampedKeys::window)];
        let concurrency = match (self.concurrency, windows.into_iter().flatten().min()) {
            (Concurrency::Wait { timeout }, Some(window)) => Concurrency::Wait { timeout: timeout.min(window / 2) },
            (concurrency, _) => concurrency,
        };
        let idempotency = Idempotency::new(pool).concurrency(concurrency).retention(self.retention);
        Ok(match self.keys {
            None if self.partitioned => return Err("--partitioned needs --keys".into()),
            None => idempotency,
            Some(keys) if self.partitioned => idempotency.timestamped_keys(keys.partitioned()?),
            Some(keys) => idempotency.timestamped_keys(keys),
        })
    }
}

fn seconds(text: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(std::env::args().skip(1))?;
    let url = throwaway_postgres::database_url()?;
    let pool = PgPoolOptions::new().max_connections(settings.pool).connect(&url).await?;
    prepare(&pool).await?;
    if settings.partitioned {
        axum_idempotency::migrate_partitioned(&pool).await?;
    }
    let app = app(settings.idempotency(&pool)?);
    let listener = tokio::net::TcpListener::bind(settings.listen).await?;
    let address = listener.local_addr()?;
    // Whoever reads this may stop reading after the first line.
    writeln!(std::io::stdout(), "listening on http://{address}\nDATABASE_URL={url}").ok();
    let server = axum::serve(listener, app);
    if settings.self_check {
        let server = tokio::spawn(server.into_future());
        self_check(address).await?;
        server.abort();
        return Ok(());
    }
    Ok(server.await?)
}

/// A charge, its retry, and a retry after a panic: what a visitor would try first.
async fn self_check(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let client = reqwest::Client::new();
    let run = std::process::id();
    let (owner, account) = (format!("check-{run}"), "checking");
    let post = |path: &str, key: &str, body: serde_json::Value| {
        client.post(format!("http://{address}{path}")).bearer_auth(&owner).header("idempotency-key", key).json(&body)
    };
    let opened = post("/accounts", "open", json!({ "id": account, "balance": 100 })).send().await?;
    assert_eq!(opened.status(), 201);
    let charge = |key: &str| post("/charges", key, json!({ "account": account, "amount": 30 }));
    assert_eq!(charge("a").header("x-lab-fault", "panic").send().await?.status(), 500);
    let first: serde_json::Value = charge("a").send().await?.json().await?;
    assert_eq!(first["balance"], 70);
    let retry = charge("a").send().await?;
    assert_eq!(retry.headers()["idempotent-replayed"], "true");
    assert_eq!(retry.json::<serde_json::Value>().await?, first);
    let refunded: serde_json::Value =
        post(&format!("/charges/{}/refund", first["id"]), "a", json!(null)).send().await?.json().await?;
    assert_eq!(refunded["balance"], 100);
    let shown: serde_json::Value =
        client.get(format!("http://{address}/accounts/{account}")).bearer_auth(&owner).send().await?.json().await?;
    assert_eq!(shown, json!({ "id": account, "balance": 100, "charges": 1 }));
    println!("self-check passed");
    Ok(())
}
