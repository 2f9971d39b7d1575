//! A response as a row holds it.

use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use sqlx::{Row as _, postgres::PgRow};

use super::{error::before_commit, time::Moment};
use crate::{Error, ErrorKind, StoredResponse, Window};

/// A row, as far as a duplicate needs it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) fingerprint: Vec<u8>,
    /// When its key was made, in microseconds since 1970, if it carries a timestamp.
    pub(crate) born: Option<i64>,
    pub(crate) response: StoredResponse,
}

/// A response as the columns hold it. A tombstone has its status only.
#[derive(Debug)]
pub(super) struct Columns<'a> {
    pub(super) status: i16,
    pub(super) header_names: Option<Vec<&'a str>>,
    pub(super) header_values: Option<Vec<&'a [u8]>>,
    pub(super) body: Option<&'a [u8]>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(response: &'a StoredResponse) -> Self {
        // A status code has three digits.
        let status = response.status().as_u16().cast_signed();
        let Some(body) = response.bytes() else {
            return Self { status, header_names: None, header_values: None, body: None };
        };
        let (header_names, header_values) =
            response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).unzip();
        Self { status, header_names: Some(header_names), header_values: Some(header_values), body: Some(body) }
    }
}

/// The response in a row; `None` if an outer join found no row.
pub(super) fn stored(row: &PgRow) -> Result<Option<Stored>, Error> {
    let Some(fingerprint) = row.try_get("fingerprint").map_err(before_commit)? else {
        return Ok(None);
    };
    let response = response(row)?;
    let replay_ended: bool = row.try_get("replay_ended").map_err(before_commit)?;
    let response = if replay_ended { StoredResponse::not_retained(response.status()) } else { response };
    let window = window(row)?;
    let window = if response.bytes().is_some() { window } else { window.without_replay() };
    let born = Moment::read(row, "born")?.map(|born| born.0);
    Ok(Some(Stored { fingerprint, born, response: response.with_window(window) }))
}

pub(super) fn window(row: &PgRow) -> Result<Window, Error> {
    let at = |column| Ok(Moment::read(row, column)?.map(Moment::to_system_time));
    let (expires, replay_until) = (at("expires")?, at("replay_until")?);
    let replay_ends = replay_until.into_iter().chain(expires).min();
    Ok(Window { first_used: at("first_used")?.unwrap_or(UNIX_EPOCH), replay_ends, expires })
}

fn response(row: &PgRow) -> Result<StoredResponse, Error> {
    let status: Option<i16> = row.try_get("status").map_err(before_commit)?;
    if status.is_none() {
        return Err(Error::new(ErrorKind::Unanswered));
    }
    let names: Option<Vec<String>> = row.try_get("header_names").map_err(before_commit)?;
    let values: Option<Vec<Vec<u8>>> = row.try_get("header_values").map_err(before_commit)?;
    let body: Option<Vec<u8>> = row.try_get("body").map_err(before_commit)?;
    decode(status, names, values, body).ok_or_else(|| Error::new(ErrorKind::CorruptRow))
}

/// Puts a response together from columns that anybody may have written.
fn decode(
    status: Option<i16>,
    names: Option<Vec<String>>,
    values: Option<Vec<Vec<u8>>>,
    body: Option<Vec<u8>>,
) -> Option<StoredResponse> {
    let status = StatusCode::from_u16(u16::try_from(status?).ok()?).ok()?;
    let (names, values, body) = match (names, values, body) {
        (None, None, None) => return Some(StoredResponse::not_retained(status)),
        (names, values, body) => (names?, values?, body?),
    };
    if names.len() != values.len() {
        return None;
    }
    let mut headers = Vec::with_capacity(names.len());
    for (name, value) in names.into_iter().zip(values) {
        headers.push((HeaderName::try_from(name).ok()?, HeaderValue::from_maybe_shared(Bytes::from(value)).ok()?));
    }
    Some(StoredResponse::new(status, body).with_headers(headers))
}

/// Takes any columns for a row; what is taken for a response has to be one.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_row(status: Option<i16>, names: Option<Vec<String>>, values: Option<Vec<Vec<u8>>>, body: Option<Vec<u8>>) {
    if let Some(response) = decode(status, names, values, body) {
        assert_eq!(round_trip(&response), Some(response));
    }
}

/// A response, written and read.
#[cfg(any(fuzzing, test))]
fn round_trip(response: &StoredResponse) -> Option<StoredResponse> {
    let columns = Columns::of(response);
    decode(
        Some(columns.status),
        columns.header_names.map(|names| names.iter().map(ToString::to_string).collect()),
        columns.header_values.map(|values| values.iter().map(|value| value.to_vec()).collect()),
        columns.body.map(<[u8]>::to_vec),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_columns_are_an_answer_or_none_and_never_a_panic(
            status in prop::option::of(any::<i16>()),
            names in prop::option::of(prop::collection::vec("[a-zA-Z -]{0,4}|\\PC{0,3}", 0..4)),
            values in prop::option::of(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..4)),
            body in prop::option::of(prop::collection::vec(any::<u8>(), 0..6)),
        ) {
            if let Some(response) = decode(status, names, values, body) {
                prop_assert_eq!(round_trip(&response), Some(response));
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let response = StoredResponse::new(StatusCode::CREATED, "body").with_headers([
            (http::header::LINK, HeaderValue::from_static("</a>")),
            (http::header::LINK, HeaderValue::from_static("</b>, </c>")),
            (HeaderName::from_static("x-obs"), HeaderValue::from_bytes(b"caf\xe9").expect("obs-text is allowed")),
        ]);
        assert_eq!(round_trip(&response), Some(response));
        let tombstone = StoredResponse::not_retained(StatusCode::CREATED);
        let columns = Columns::of(&tombstone);
        assert!(columns.header_names.is_none() && columns.header_values.is_none() && columns.body.is_none());
        assert_eq!(decode(Some(columns.status), None, None, None), Some(tombstone));
    }

    #[test]
    fn a_row_that_holds_nonsense_is_no_answer() {
        let name = || Some(vec!["x".to_owned()]);
        let value = || Some(vec![b"v".to_vec()]);
        let body = || Some(Vec::new());
        assert!(decode(Some(200), name(), value(), body()).is_some());
        for broken in [
            decode(None, name(), value(), body()),
            decode(Some(-1), name(), value(), body()),
            decode(Some(99), name(), value(), body()),
            decode(Some(200), None, value(), body()),
            decode(Some(200), name(), Some(Vec::new()), body()),
            decode(Some(200), Some(vec!["a b".to_owned()]), value(), body()),
            decode(Some(200), name(), Some(vec![b"a\nb".to_vec()]), body()),
            decode(Some(200), name(), value(), None),
        ] {
            assert!(broken.is_none());
        }
    }
}
