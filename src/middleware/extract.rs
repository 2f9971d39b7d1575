//! What a handler may ask for about its own request.

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::request::Parts,
};

use super::{rejection::Rejection, rejection_kind::RejectionKind};
use crate::{IdempotencyKey, IdempotentRequest};

/// The whole of it, for instance to derive keys for other services. `Option<IdempotentRequest>` where the key is
/// optional.
impl<S: Sync> FromRequestParts<S> for IdempotentRequest {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Rejection::new(
                RejectionKind::Misconfigured,
                "the handler extracts its idempotency key, but no IdempotencyLayer has found one: add the layer to \
                 the route, or extract an Option where the key is optional",
            )
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for IdempotentRequest {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// The key that the layer has accepted. `Option<IdempotencyKey>` where it is optional.
impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let request = <IdempotentRequest as FromRequestParts<S>>::from_request_parts(parts, state).await?;
        Ok(request.key().clone())
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<IdempotentRequest>().map(|request| request.key().clone()))
    }
}
