//! What the protections that are written by hand have in common.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use sqlx::{Row as _, postgres::PgRow};

use crate::work::{Failure, Reply};

pub(super) const OPERATION: &str = "POST /charges";

/// Who asks for what.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) owner: String,
    pub(super) key: String,
    pub(super) fingerprint: [u8; 32],
}

impl Asked {
    pub(super) fn of(headers: &HeaderMap, uri: &Uri, body: &[u8]) -> Result<Self, Failure> {
        let field = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let owner = field("x-owner").ok_or(Failure::Refused(StatusCode::UNAUTHORIZED))?;
        let key = field("idempotency-key")
            .filter(|key| (1..=255).contains(&key.len()))
            .ok_or(Failure::Refused(StatusCode::BAD_REQUEST))?;
        let mut hash = Sha256::new();
        for part in [b"POST", uri.path().as_bytes(), uri.query().unwrap_or_default().as_bytes(), body] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Ok(Self { owner, key, fingerprint: hash.finalize().into() })
    }
}

/// The stored answer of `row`, if the same was asked then.
pub(super) fn replay(asked: &Asked, row: &PgRow) -> Result<Response, Failure> {
    let fingerprint: Vec<u8> = row.try_get("fingerprint")?;
    if fingerprint != asked.fingerprint {
        return Err(Failure::Refused(StatusCode::UNPROCESSABLE_ENTITY));
    }
    let status: Option<i16> = row.try_get("status")?;
    let Some(status) = status else {
        return Err(Failure::Refused(StatusCode::CONFLICT));
    };
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let mut response = status.ok_or(Failure::Refused(StatusCode::INTERNAL_SERVER_ERROR))?.into_response();
    let (names, values): (Vec<String>, Vec<Vec<u8>>) = (row.try_get("header_names")?, row.try_get("header_values")?);
    for (name, value) in names.into_iter().zip(values) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    let body: Vec<u8> = row.try_get("body")?;
    *response.body_mut() = Body::from(body);
    Ok(response)
}

pub(super) const KEEP: &str = "\
update kept
   set status = $4, header_names = $5, header_values = $6, body = $7
 where owner = $1 and operation = $2 and key = $3
";

pub(super) const READ: &str = "\
select fingerprint, status, header_names, header_values, body
  from kept
 where owner = $1 and operation = $2 and key = $3
";

/// Writes the answer into the key's row.
pub(super) async fn keep(connection: &mut sqlx::PgConnection, asked: &Asked, reply: &Reply) -> Result<(), Failure> {
    let (names, values): (Vec<&str>, Vec<&[u8]>) =
        reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).unzip();
    let body: &Bytes = &reply.body;
    let kept = sqlx::query(KEEP)
        .bind(&asked.owner)
        .bind(OPERATION)
        .bind(&asked.key)
        .bind(i16::try_from(reply.status.as_u16()).unwrap_or(i16::MAX))
        .bind(names)
        .bind(values)
        .bind(&body[..])
        .execute(connection)
        .await?;
    if kept.rows_affected() == 1 { Ok(()) } else { Err(Failure::Refused(StatusCode::INTERNAL_SERVER_ERROR)) }
}
