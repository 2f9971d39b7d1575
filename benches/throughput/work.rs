//! What every variant's endpoint is for, so that the variants differ in their protection alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use sqlx::{PgConnection, PgPool};

/// The tables of a variant's database. Two are for protections written by hand: what they store is the same.
pub(crate) const SCHEMA: &str = "\
create table charge (
    id     bigint generated always as identity primary key,
    amount bigint not null,
    note   text not null,
    made   timestamptz not null default now()
);
create table kept (
    owner         text  collate \"C\" not null,
    operation     text  collate \"C\" not null,
    key           text  collate \"C\" not null,
    fingerprint   bytea not null,
    status        smallint,
    header_names  text[],
    header_values bytea[],
    body          bytea,
    created_at    timestamptz not null default now(),
    expires_at    timestamptz,
    primary key (owner, operation, key)
);
create index kept_expires_at on kept (expires_at);
";

/// What the handlers of one variant share.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) pool: PgPool,
    pub(crate) work: Arc<Work>,
}

/// What a call does.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) response_bytes: usize,
    /// How long it takes inside its transaction, beside its statement.
    pub(crate) pause: Duration,
    pub(crate) executed: AtomicU64,
}

impl Work {
    pub(crate) fn new(response_bytes: usize, pause: Duration) -> Arc<Self> {
        Arc::new(Self { response_bytes, pause, executed: AtomicU64::new(0) })
    }
}

/// The business of every variant: one INSERT.
pub(crate) async fn charge(work: &Work, connection: &mut PgConnection, request: &Bytes) -> Result<Reply, Failure> {
    let id: i64 = sqlx::query_scalar("insert into charge (amount, note) values ($1, 'a charge') returning id")
        .bind(i64::try_from(request.len()).unwrap_or(i64::MAX))
        .fetch_one(connection)
        .await?;
    if !work.pause.is_zero() {
        tokio::time::sleep(work.pause).await;
    }
    work.executed.fetch_add(1, Ordering::SeqCst);
    let location = HeaderValue::try_from(format!("/charges/{id}")).unwrap_or(HeaderValue::from_static("/charges"));
    Ok(Reply {
        status: StatusCode::CREATED,
        headers: vec![
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::LOCATION, location),
        ],
        body: json(id, work.response_bytes),
    })
}

/// An object of so many bytes.
pub(crate) fn json(id: i64, bytes: usize) -> Bytes {
    let mut body = format!("{{\"id\":{id},\"note\":\"").into_bytes();
    body.resize(bytes.saturating_sub(2).max(body.len()), b'x');
    body.extend_from_slice(b"\"}");
    body.into()
}

/// An answer in a form that can be stored.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers);
        response
    }
}

/// Why a handler gave up: the client sees it, and the run ends.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(StatusCode),
    Sql(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(status) => status.into_response(),
            Self::Sql(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}
