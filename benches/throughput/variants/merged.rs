//! As by hand, with BEGIN and the claim in one message, and the answer and COMMIT in another: no round trip more than
//! without protection. What that gains where round trips cost, and what it loses where statements cannot stay prepared.
//!
//! The crate cannot do it: sqlx would not know of the transaction, and a savepoint of the handler's would begin another one
//! inside it. Here nothing takes care of what happens when a future is dropped halfway.

use std::fmt::Write as _;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use sqlx::{AssertSqlSafe, Row as _};

use super::{
    by_hand::CLAIM,
    kept::{Asked, KEEP, OPERATION, replay},
};
use crate::work::{Failure, Reply, Stage, charge};

pub(super) async fn handler(
    State(stage): State<Stage>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let asked = Asked::of(&headers, &uri, &body)?;
    let key = [text(&asked.owner), text(OPERATION), text(&asked.key)];
    let mut connection = stage.pool.acquire().await?;
    let fingerprint = bytea(&asked.fingerprint);
    let claim = with_literals(CLAIM, &[&key[0], &key[1], &key[2], &fingerprint]);
    let rows = sqlx::raw_sql(AssertSqlSafe(format!("begin; {claim}"))).fetch_all(&mut *connection).await?;
    let claimed = rows.first().ok_or(Failure::Refused(StatusCode::CONFLICT))?;
    if claimed.try_get("ours")? {
        let reply = charge(&stage.work, &mut connection, &body).await?;
        let answer = answer(&reply);
        let keep = with_literals(KEEP, &key.iter().chain(&answer).collect::<Vec<_>>());
        sqlx::raw_sql(AssertSqlSafe(format!("{keep}; commit"))).execute(&mut *connection).await?;
        return Ok(reply.into_response());
    }
    sqlx::raw_sql("rollback").execute(&mut *connection).await?;
    replay(&asked, claimed)
}

/// Status, header names, header values and body.
fn answer(reply: &Reply) -> [String; 4] {
    let names: Vec<_> = reply.headers.iter().map(|(name, _)| text(name.as_str())).collect();
    let values: Vec<_> = reply.headers.iter().map(|(_, value)| bytea(value.as_bytes())).collect();
    [
        format!("{}::smallint", reply.status.as_u16()),
        format!("array[{}]::text[]", names.join(",")),
        format!("array[{}]::bytea[]", values.join(",")),
        bytea(&reply.body),
    ]
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn bytea(value: &[u8]) -> String {
    let mut literal = String::with_capacity(2 * value.len() + 12);
    literal.push_str("'\\x");
    for byte in value {
        write!(literal, "{byte:02x}").ok();
    }
    literal.push_str("'::bytea");
    literal
}

/// From the last parameter down, so that `$1` is not taken for the beginning of `$10`.
fn with_literals(statement: &str, literals: &[&String]) -> String {
    let numbered = literals.iter().enumerate().rev();
    numbered.fold(statement.to_owned(), |statement, (n, literal)| statement.replace(&format!("${}", n + 1), literal))
}
