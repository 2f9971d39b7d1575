//! The bounded read of a body, of requests and responses alike.

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};

/// A body that was read to its end.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

/// Why a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    TooLarge,
    Broken,
}

/// Reads at most `limit` bytes. A body that announces more is not read at all.
pub(super) async fn read<B>(body: B, limit: usize) -> Result<Whole, Unread>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(Whole { trailers: collected.trailers().cloned(), bytes: collected.to_bytes() }),
        Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(_) => Err(Unread::Broken),
    }
}

impl From<Whole> for Body {
    fn from(whole: Whole) -> Self {
        match whole.trailers {
            None => Self::from(whole.bytes),
            Some(trailers) => Self::new(Full::new(whole.bytes).with_trailers(std::future::ready(Some(Ok(trailers))))),
        }
    }
}
