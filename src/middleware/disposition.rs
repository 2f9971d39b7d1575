use axum::{
    http::StatusCode,
    response::{IntoResponse, IntoResponseParts, Response, ResponseParts},
};

use crate::Retention;

/// What becomes of a handler's effects and of its answer. There is no fourth: effects are kept only together with
/// the answer that reports them.
///
/// The table of [`Disposition::of`] decides by the status. A handler overrides it for one response by returning a
/// disposition as a part of it:
///
/// ```
/// use axum::{http::StatusCode, response::IntoResponse};
/// use axum_idempotency::Disposition;
///
/// /// Keeps the row that says "declined", which a 400 would otherwise undo.
/// async fn decline() -> impl IntoResponse {
///     (StatusCode::BAD_REQUEST, Disposition::Commit, "card expired")
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Keep the effects, keep the answer: retries get it.
    Commit,
    /// Undo the effects, keep the answer: a decision about this intent that retries get as well.
    Reject,
    /// Undo the effects, keep nothing: the key is free, and a retry executes.
    Release,
}

impl Disposition {
    /// The default table.
    ///
    /// | status | disposition | because |
    /// |---|---|---|
    /// | 2xx, 3xx | `Commit` | it was done |
    /// | 402, 409, 410, 451 | `Reject` | it was decided that it is not done |
    /// | other 4xx | `Release` | it was refused before anything was decided; a corrected request may use the key |
    /// | 5xx, and what is no final status | `Release` | it failed; a retry may succeed |
    #[must_use]
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=399 => Self::Commit,
            402 | 409 | 410 | 451 => Self::Reject,
            _ => Self::Release,
        }
    }
}

impl IntoResponseParts for Disposition {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Self::Error> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

/// The answer is kept so long, instead of as long as the layer says. See
/// [`StoredResponse::with_retention`](crate::StoredResponse::with_retention).
impl IntoResponseParts for Retention {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Self::Error> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

impl IntoResponse for Disposition {
    fn into_response(self) -> Response {
        (self, ()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r38_the_default_table() {
        let with = |disposition: Disposition| -> Vec<u16> {
            (100..600)
                .filter(|&code| StatusCode::from_u16(code).is_ok_and(|status| Disposition::of(status) == disposition))
                .collect()
        };
        assert_eq!(with(Disposition::Commit), (200..400).collect::<Vec<_>>());
        assert_eq!(with(Disposition::Reject), [402, 409, 410, 451]);
        assert_eq!(with(Disposition::Release).len(), 500 - 200 - 4);
    }
}
