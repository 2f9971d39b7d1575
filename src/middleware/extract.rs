//! Extractors for a handler's own request.

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::request::Parts,
};

use super::{rejection::Rejection, rejection_kind::RejectionKind};
use crate::{IdempotencyKey, IdempotentRequest};

/// Extracts the whole request, for instance to derive keys for other services. Extract `Option<IdempotentRequest>` if the
/// key is optional.
impl<S: Sync> FromRequestParts<S> for IdempotentRequest {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Rejection::new(
                RejectionKind::Misconfigured,
                "The handler extracts its idempotency key, but no IdempotencyLayer has found one. Add the layer to \
                 the route, or extract an Option if the key is optional.",
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

/// Extracts the key that the layer has accepted. Extract `Option<IdempotencyKey>` if the key is optional.
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
