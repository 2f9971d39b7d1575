use axum::{
    http::StatusCode,
    response::{IntoResponse, IntoResponseParts, Response, ResponseParts},
};

use crate::Retention;

/// Whether a handler's effects and its response are kept.
///
/// There is no fourth case: effects are kept only together with the response that reports them. The table of
/// [`Disposition::of`] decides by the status. A handler overrides it for one response by returning a disposition as a part
/// of the response:
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
    /// Keeps the effects and the response: retries get the response.
    Commit,
    /// Undoes the effects and keeps the response: it is a final decision about this intent, and retries get it as well.
    Reject,
    /// Undoes the effects and keeps nothing: the key is free, and a retry executes.
    Release,
}

impl Disposition {
    /// Returns the default disposition for a status.
    ///
    /// | status | disposition | because |
    /// |---|---|---|
    /// | 2xx, 3xx | `Commit` | the work was done |
    /// | 402, 409, 410, 451 | `Reject` | the decision not to do the work is final |
    /// | other 4xx | `Release` | the request was refused before a decision; a corrected request may use the key |
    /// | 5xx, and any status that is not final | `Release` | the work failed; a retry may succeed |
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

/// Sets how long this response is kept, instead of the layer's retention. See
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
