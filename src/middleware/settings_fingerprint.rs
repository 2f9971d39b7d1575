//! The settings of [`IdempotencyLayer`] for fingerprints.

use std::sync::Arc;

use axum::http::{HeaderName, request::Parts};

use super::layer::IdempotencyLayer;
use crate::Fingerprint;

/// # How a retry is distinguished from another request
///
/// If a server could distinguish two requests with one key, the second one is refused with 422 `key-reused`, unless a
/// setting says that they are the same. The method, the path, the query, `Content-Type` without parameters,
/// `Content-Encoding`, and the body are compared. All other header fields may differ: a retry has another `Date` or
/// trace, and may have another `Accept` or `If-Match`.
///
/// Bodies are compared by their bytes, with one exception: in a `multipart/*` body the text of the boundary is not
/// compared, since clients make a new one for each try. Everything else in it is compared: the parts, their header
/// fields, their order, and the text around them. A multipart body too is compared by its bytes, together with the
/// parameters of `Content-Type`, if readers could disagree about its delimiters:
///
/// * if the boundary is missing, is longer than 70 characters or does not follow RFC 2046;
/// * if the body holds `--boundary` anywhere but on a separate line (which ends with CRLF, and has `--` at its end only
///   if it is the last one);
/// * if there is a `Content-Encoding`.
///
/// The boundary of a multipart body inside another one is always compared.
///
/// The settings for kinds of bodies apply if there is one `Content-Type` and no `Content-Encoding`.
///
/// A row that was written under other settings of this group matches every request with its key, so a deployment that
/// changes them refuses no real retry.
impl IdempotencyLayer {
    /// Sets whether JSON bodies are compared in their canonical form (RFC 8785). Default: `false`; their bytes are compared.
    ///
    /// The order of members, white space and `1.0` for `1` then make no difference. The setting applies to
    /// `application/json` and to media types that end with `+json`. A body is still compared by its bytes if its
    /// canonical form would lose information: if it holds a number that its IEEE double does not print unchanged, such as
    /// an integer beyond 2^53 or `1234567890123456.71`, if an object names a member twice, or if it is not JSON.
    pub fn canonical_json(self, canonical: bool) -> Self {
        self.with(|config| config.fingerprint.content.canonical_json = canonical)
    }

    /// Sets whether the `id` of a JSON-RPC 2.0 request may differ in its retry, because clients make a new one for each try.
    /// Default: `false`; the `id` is compared like everything else.
    ///
    /// **A replay carries the id of the first request**, since it is the first response, byte for byte. A client that
    /// finds its request by the response's id must repeat the id with each try, and then needs no setting. This setting is
    /// for clients that use the HTTP response, or that know that the id may be that of an earlier try.
    ///
    /// It applies to the media types of [`canonical_json`](Self::canonical_json), which may be on as well, and to
    /// `application/json-rpc` and `application/jsonrequest`. In these it applies to an object with `"jsonrpc": "2.0"` and
    /// a `method`, and to a batch, which is an array of only such objects. The value of `id` is then not compared, if it
    /// is a string or a number. It is compared whether there is an `id`, since a request without one is a notification,
    /// and whether it is `null`, which some servers treat as missing. A JSON-RPC response is compared with its id, and so
    /// is a body that names `id`, `method` or `jsonrpc` twice in one request.
    pub fn json_rpc(self, any_id: bool) -> Self {
        self.with(|config| config.fingerprint.content.json_rpc = any_id)
    }

    /// Sets whether URL-encoded forms (`application/x-www-form-urlencoded`) are the same request if they hold the same
    /// pairs in another order. Default: `false`; their bytes are compared.
    ///
    /// Values of one name keep their order: `a=1&b=2&a=3` is the same as `b=2&a=1&a=3`, but not as `a=3&b=2&a=1`. Names
    /// are compared as a server decodes them, so `%61` is `a`, and names that are not UTF-8 are equal if they are equal
    /// after replacement. Apart from the order, the bytes are compared: `a=%31` is another pair than `a=1`. Only `&`
    /// separates pairs.
    ///
    /// Do not use it where the application reads nested names, for which the order of different names has a meaning, as in
    /// `items[][id]=1&items[][gift]=yes`.
    pub fn form_in_any_order(self, any_order: bool) -> Self {
        self.with(|config| config.fingerprint.content.form_in_any_order = any_order)
    }

    /// Sets the same for the pairs of the query, `?a=1&b=2`. Default: `false`; the bytes of queries are compared.
    pub fn query_in_any_order(self, any_order: bool) -> Self {
        self.with(|config| config.fingerprint.query_in_any_order = any_order)
    }

    /// Sets header fields that are compared too, such as an API version, with all of their lines. Default: only
    /// `Content-Type`, without parameters, and `Content-Encoding`.
    pub fn fingerprint_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.fingerprint.headers = names.into_iter().collect())
    }

    /// Stores fingerprints as an HMAC with `secret`, so that a reader of the table cannot find a short body by trying.
    /// Default: fingerprints are stored as a SHA-256.
    pub fn fingerprint_secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|config| config.fingerprint.secret = Some(secret.as_ref().into()))
    }

    /// Sets the function that makes a request's fingerprint, from its head and the unchanged bytes of its body. Default: the
    /// comparison that is described above.
    ///
    /// It replaces that comparison, with the settings for the query, for bodies and for header fields; a multipart body
    /// is passed with its boundary. When you change the function, give its result another
    /// [scheme](Fingerprint::with_scheme).
    pub fn with_fingerprint(self, fingerprint: impl Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync + 'static) -> Self {
        self.with(|config| config.fingerprint.own = Some(Arc::new(fingerprint)))
    }
}
