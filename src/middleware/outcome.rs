use super::disposition::Disposition;

/// What the layer did for a request with a key: in the extensions of its response, for logging and metrics outside.
/// Refusals have a [`Rejection`](crate::Rejection) there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran, and this became of its work and its answer.
    Executed(Disposition),
    /// The handler did not run; the answer is a stored one.
    Replayed,
}
