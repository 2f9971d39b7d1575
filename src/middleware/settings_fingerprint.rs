//! The settings of [`IdempotencyLayer`] for fingerprints.

use std::sync::Arc;

use axum::http::{HeaderName, request::Parts};

use super::layer::IdempotencyLayer;
use crate::Fingerprint;

/// # What tells a retry from another request
///
/// Two requests under one key that a server could tell apart are two requests, and the second is refused with 422
/// `key-reused`, unless a setting says that they are one. What counts is the method, the path, the query,
/// `Content-Type` without parameters, `Content-Encoding`, and the body. All other header fields may differ: a retry has
/// another `Date` or trace, and may have another `Accept` or `If-Match`.
///
/// The body counts by its bytes, with one exception: in a `multipart/*` body the text of the boundary does not count,
/// since clients make a new one for each try. All else in it does: the parts, their header fields, their order, and what
/// stands around them. The bytes count there too, and with them the parameters of `Content-Type`, where it is not certain
/// what a reader takes for a delimiter: if the boundary is missing, is longer than 70 characters or is not as RFC 2046
/// has it; if the body holds `--boundary` anywhere but on a line of its own (that ends with CRLF, and has `--` at its end
/// only if it is the last one); and if there is a `Content-Encoding`. The boundary of a multipart body inside another one
/// counts.
///
/// The settings for kinds of bodies apply where there is one `Content-Type` and no `Content-Encoding`.
///
/// A row that was written under other settings of these matches every request with its key, so that a deployment which
/// changes them refuses no honest retry.
impl IdempotencyLayer {
    /// JSON bodies are compared by what they say and not by their bytes, in their canonical form (RFC 8785): order of
    /// members, white space and `1.0` for `1` make no difference. Default: the bytes.
    ///
    /// It applies to `application/json` and to media types that end with `+json`. A body counts by its bytes where that
    /// form would not say all that it says: if it holds a number that is not what its IEEE double prints, such as an
    /// integer beyond 2^53 or `1234567890123456.71`, if an object names a member twice, and if it is not JSON.
    pub fn canonical_json(self, canonical: bool) -> Self {
        self.with(|config| config.fingerprint.content.canonical_json = canonical)
    }

    /// Whether the `id` of a JSON-RPC 2.0 request may be another one in its retry, because clients make a new one for each
    /// try. Default: `false`, it counts like all else.
    ///
    /// **A replay carries the id of the first request**, since it is the first response, byte for byte. A client that
    /// finds its request by the response's id has to repeat the id with each try, and then needs no setting; this one is
    /// for clients that go by the HTTP response, or are told that the id may be that of an earlier try.
    ///
    /// It applies to the media types of [`canonical_json`](Self::canonical_json), which may be on as well, and to
    /// `application/json-rpc` and `application/jsonrequest`; and there to an object with `"jsonrpc": "2.0"` and a
    /// `method`, and to an array of nothing but those, a batch. What does not count is the value of `id`, if it is a
    /// string or a number. Whether there is an `id` does, since a request without one is a notification; so does `null`,
    /// which some servers take for none. A response counts with its id, and so does a body that names `id`, `method` or
    /// `jsonrpc` twice in one request.
    pub fn json_rpc(self, any_id: bool) -> Self {
        self.with(|config| config.fingerprint.content.json_rpc = any_id)
    }

    /// Whether URL-encoded forms (`application/x-www-form-urlencoded`) are the same request if they hold the same pairs in
    /// another order. Default: `false`, they are compared by their bytes.
    ///
    /// Values of one name stay in their order: `a=1&b=2&a=3` is `b=2&a=1&a=3`, but not `a=3&b=2&a=1`. Names are compared
    /// as a server decodes them, so that `%61` is `a`, and names that are not UTF-8 are one where their replacements are.
    /// But for the order, the bytes count: `a=%31` is another pair than `a=1`. Pairs are parted by `&` alone.
    pub fn form_in_any_order(self, any_order: bool) -> Self {
        self.with(|config| config.fingerprint.content.form_in_any_order = any_order)
    }

    /// Likewise for the pairs of the query, `?a=1&b=2`. Default: `false`, queries are compared by their bytes.
    pub fn query_in_any_order(self, any_order: bool) -> Self {
        self.with(|config| config.fingerprint.query_in_any_order = any_order)
    }

    /// Header fields that belong to what is asked, such as an API version; each line of them counts. Default: none but
    /// `Content-Type`, without parameters, and `Content-Encoding`.
    pub fn fingerprint_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.fingerprint.headers = names.into_iter().collect())
    }

    /// Stores fingerprints as their HMAC under `secret`, so that nobody who reads the table can find a short body by
    /// trying. Default: as their SHA-256.
    pub fn fingerprint_secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|config| config.fingerprint.secret = Some(secret.as_ref().into()))
    }

    /// What tells a retry from another request: a function of the request's head and the bytes of its body, as they came.
    /// Default: all that is said above.
    ///
    /// It replaces all of that, with the settings for the query, for bodies and for header fields; a multipart body comes
    /// with its boundary. When the function changes, give what it returns another [scheme](Fingerprint::with_scheme).
    pub fn with_fingerprint(self, fingerprint: impl Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync + 'static) -> Self {
        self.with(|config| config.fingerprint.own = Some(Arc::new(fingerprint)))
    }
}
