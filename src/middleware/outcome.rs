use super::disposition::Disposition;

/// What the layer did for a request with a key.
///
/// It is in the extensions of the response, for logging and metrics in outer layers. Rejections have a
/// [`Rejection`](crate::Rejection) there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran, and its work and its response were treated as the disposition says.
    Executed(Disposition),
    /// The handler did not run; the response is a stored one.
    Replayed,
}
