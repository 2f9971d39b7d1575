use crate::{IdempotencyKey, IdempotentRequest, Operation, Scope};

/// What names a row: two requests with the same one are the same intent, or one key used twice.
pub(super) type Identity = (Scope, Operation, IdempotencyKey);

pub(super) fn identity(request: &IdempotentRequest) -> Identity {
    (request.scope().clone(), request.operation().clone(), request.key().clone())
}
