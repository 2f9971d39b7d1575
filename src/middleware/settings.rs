//! The settings of [`IdempotencyLayer`]: a setter without prefix sets a value, one with `with_` sets a function.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue, Method, StatusCode, Uri, request::Parts, response},
    response::Response,
};

use super::{
    codec::BodyCodec, config::NEVER, disposition::Disposition, layer::IdempotencyLayer, rejection::Rejection,
    rejection_kind::RejectionKind, tx_use::TxUse,
};
use crate::{Concurrency, IdempotencyKey, LocalSettings, Operation, Retention, StoredResponse, TimestampedKeys};

/// # What is handled
impl IdempotencyLayer {
    /// Sets the name of the operation. Default: the method and the route's template, such as
    /// `POST /charges/{id}/refund`, or the path itself outside an axum router.
    ///
    /// The default changes when a route is renamed, and its keys are then no longer found. Set a name if there is no
    /// template and the layer uses [timestamped keys](Self::timestamped_keys): each operation then has a permanent row.
    pub fn operation(self, name: impl Into<Operation>) -> Self {
        self.with(|config| config.operation = Some(name.into()))
    }

    /// Sets the application's name, which keeps its keys apart from those of other applications in the same database.
    ///
    /// The name and a slash are put before the operation. Default: none; then two applications on one database with the same
    /// route get each other's responses for the same owner and key.
    pub fn namespace(self, name: &str) -> Self {
        self.with(|config| config.namespace = Some(name.into()))
    }

    /// Refuses requests without a key, with 400. This is the default.
    pub fn required(self) -> Self {
        self.with(|config| config.required = true)
    }

    /// Executes requests without a key, in a plain transaction, and stores nothing for them. A key that is present but not
    /// valid is still refused.
    pub fn optional(self) -> Self {
        self.with(|config| config.required = false)
    }

    /// Sets the methods that the layer handles; requests with other methods pass through untouched. Default: POST and PATCH.
    ///
    /// GET, HEAD, OPTIONS, TRACE and CONNECT pass through even if they are listed.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let listed = methods.into_iter().filter(|method| !NEVER.contains(method));
        self.with(|config| config.methods = listed.collect())
    }

    /// Sets whether a request with a key is refused if its method is not among [`methods`](Self::methods).
    ///
    /// It gets 400 `key-not-handled`, unless the method is GET, HEAD, OPTIONS, TRACE or CONNECT. Default: `false`; the
    /// request passes through like one without a key and is executed each time, and the client is not told that the key
    /// is ignored.
    pub fn refuse_unhandled_keys(self, refuse: bool) -> Self {
        self.with(|config| config.refuse_unhandled_keys = refuse)
    }

    /// Sets how long keys are kept. Default: as set by [`Idempotency::retention`](crate::Idempotency::retention).
    ///
    /// A handler changes it for one response by returning a [`Retention`] as a part of the response.
    ///
    /// A retention that is not longer than the wait of a duplicate and the [`handler_timeout`](Self::handler_timeout)
    /// together is raised to 1 ms more than their sum; this is logged once, at `WARN`, when the layer is added. Without a
    /// handler timeout only the wait counts: a handler that takes longer than the retention is executed once, but its
    /// response expires at once.
    pub fn retention(self, retention: Retention) -> Self {
        self.with_idempotency(|idempotency| idempotency.retention(retention))
    }

    /// Requires timestamped keys. Default: as set by
    /// [`Idempotency::timestamped_keys`](crate::Idempotency::timestamped_keys).
    ///
    /// A key without a timestamp is refused with 400 `invalid-key`, a key that is too old with 412 `key-expired`, and a
    /// key from the future with 400 `key-from-future`. A window that is too short is raised, as for
    /// [`retention`](Self::retention).
    pub fn timestamped_keys(self, keys: TimestampedKeys) -> Self {
        self.with_idempotency(|idempotency| idempotency.timestamped_keys(keys))
    }

    /// Sets what happens to duplicates of a running request. Default: as set by
    /// [`Idempotency::concurrency`](crate::Idempotency::concurrency).
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        self.with_idempotency(|idempotency| idempotency.concurrency(concurrency))
    }

    /// Sets how long a handler may take to respond to a request with a key, to the last byte of the body.
    ///
    /// After that the handler is dropped, its work is rolled back, and the client gets 503 `handler-timeout`. Default: 60
    /// seconds, longer than nearly every client waits. `None` means no limit. For a request without a key the limit
    /// applies if the handler has taken its [`Tx`](crate::Tx), up to the head of the response.
    ///
    /// The limit ends handlers that wait for themselves. Such a handler inserts a value through its `Tx`, and then the
    /// same value through the application's pool, which waits for the first insert. PostgreSQL cannot detect that as a
    /// deadlock. The rejection says so if another connection waited for the request's transaction.
    ///
    /// If a statement of the handler is still running in the database, the key stays taken until the server notices that
    /// its client is gone: within two seconds on [the engine's own pool](crate::Idempotency::new). On a shared pool, or
    /// behind a pooler, give the role a `statement_timeout` too.
    pub fn handler_timeout(self, limit: impl Into<Option<Duration>>) -> Self {
        let limit = limit.into();
        self.with(|config| config.handler_timeout = limit)
            .with_idempotency(|idempotency| idempotency.with_handler_timeout(limit.unwrap_or_default()))
    }

    /// Refuses a handler that responds with 2xx to a request with a key without having taken its [`Tx`](crate::Tx).
    ///
    /// The client gets 500 `misconfigured`, and no response is stored. Such a handler looks protected and is not: its
    /// writes on another connection are neither undone by a 500 nor committed with its response. Use it in tests, or to
    /// be certain in production. Default: [`expect_tx`](Self::expect_tx).
    pub fn require_tx(self) -> Self {
        self.with(|config| config.tx_use = TxUse::Required)
    }

    /// Logs at `WARN`, once for each operation, that a handler has not taken its [`Tx`](crate::Tx). The response is stored.
    ///
    /// This is the default. Use it to undo [`require_tx`](Self::require_tx) or [`without_tx`](Self::without_tx) for one
    /// route.
    pub fn expect_tx(self) -> Self {
        self.with(|config| config.tx_use = TxUse::Expected)
    }

    /// Accepts handlers that have not taken their [`Tx`](crate::Tx), without a warning. Use it if they write nothing to this
    /// database.
    pub fn without_tx(self) -> Self {
        self.with(|config| config.tx_use = TxUse::Unneeded)
    }

    /// Sets a function from a request's head to PostgreSQL settings for its transaction, such as for row-level security.
    /// Default: no settings.
    ///
    /// They are sent in the message that begins the transaction, for requests with a key and without one, and cost no round
    /// trip. With them a replay takes three round trips even if the process has seen the key.
    ///
    /// ```
    /// # use axum_idempotency::{IdempotencyLayer, LocalSettings};
    /// # #[derive(Clone)] struct TenantId(String);
    /// # fn f(layer: IdempotencyLayer) -> IdempotencyLayer {
    /// layer.with_local_settings(|parts| match parts.extensions.get::<TenantId>() {
    ///     Some(tenant) => LocalSettings::new().set("app.tenant", &tenant.0),
    ///     None => LocalSettings::new(),
    /// })
    /// # }
    /// ```
    pub fn with_local_settings(self, settings: impl Fn(&Parts) -> LocalSettings + Send + Sync + 'static) -> Self {
        self.with(|config| config.local_settings = Some(Arc::new(settings)))
    }

    /// Sets whether a request is rolled back when its client disconnects, or an outer timeout drops it. Its key is then
    /// free.
    ///
    /// Use it when the work has no value once the client is gone. Default: `false`; the request is finished in the
    /// background, so that the client's retry finds it done. Otherwise a client whose timeout is shorter than the handler
    /// needs could retry for ever.
    pub fn cancel_on_disconnect(self, cancel: bool) -> Self {
        self.with(|config| config.cancel_on_disconnect = cancel)
    }

    /// Sets the maximum size of a request body, in bytes. A larger one is refused with 413 before the key is claimed.
    /// Default: 1 MiB.
    ///
    /// It applies to requests with a key, whose body is read before the handler sees it. axum's `DefaultBodyLimit`
    /// also applies to the handler's extractors: the smaller limit counts.
    pub fn max_request_bytes(self, limit: usize) -> Self {
        self.with(|config| config.max_request_bytes = limit)
    }
}

/// # Keys
impl IdempotencyLayer {
    /// Sets the name of the key's header field. Default: `Idempotency-Key`, or `Repeatability-Request-ID` if the
    /// timestamp is [beside the key](TimestampedKeys::first_sent).
    pub fn key_header(self, name: HeaderName) -> Self {
        self.with(|config| config.header = Some(name))
    }

    /// Sets whether only keys in double quotes are accepted, as the IETF draft requires. Default: `false`; keys without
    /// quotes are accepted too, since nearly every client sends those, and both forms are the same key.
    pub fn quoted_keys_only(self, only: bool) -> Self {
        self.with(|config| config.key.strict = only)
    }

    /// Sets how many characters a key may have. A key of another length is refused, never cut. Default: 1 to 255. Bounds
    /// outside 1 to [`IdempotencyKey::MAX_LEN`] are moved to these limits.
    pub fn key_length(self, length: RangeInclusive<usize>) -> Self {
        let longest = (*length.end()).clamp(1, IdempotencyKey::MAX_LEN);
        let shortest = (*length.start()).clamp(1, longest);
        self.with(|config| config.key.length = shortest..=longest)
    }

    /// Sets whether keys in double quotes may contain spaces. Default: `false`, since proxies and logs change spaces.
    pub fn allow_spaces_in_keys(self, allow: bool) -> Self {
        self.with(|config| config.key.spaces = allow)
    }

    /// Sets whether keys must be UUIDs with hyphens. Upper and lower case are then the same key. Default: `false`.
    pub fn uuid_keys(self, only: bool) -> Self {
        self.with(|config| config.key.uuid = only)
    }

    /// Sets an additional check for keys. A key for which it returns `false` is refused with 400. Default: no check.
    pub fn with_key_check(self, check: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.key.check = Some(Arc::new(check)))
    }
}

/// # What is kept
impl IdempotencyLayer {
    /// Sets the function that decides whether effects and response are kept, unless the response contains a [`Disposition`].
    /// Default: [`Disposition::of`] the status.
    pub fn with_disposition(
        self,
        disposition: impl Fn(&response::Parts) -> Disposition + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.disposition = Some(Arc::new(disposition)))
    }

    /// Sets the maximum size of a stored response's body, in bytes. If a response is larger, the work is rolled back, and
    /// the client gets 500. Default: 1 MiB.
    pub fn max_response_bytes(self, limit: usize) -> Self {
        self.with(|config| config.max_response_bytes = limit)
    }

    /// Sets whether a response over the limit is sent to its client without being stored.
    ///
    /// Its effects are kept; a later duplicate gets 409 `response-not-retained` and is not executed. Default: `false`;
    /// the work is rolled back, and the client gets 500.
    pub fn discard_oversized_responses(self, discard: bool) -> Self {
        self.with(|config| config.discard_oversized_responses = discard)
    }

    /// Sets whether responses are sent to their clients without being stored, for those that must not be in a database. A
    /// later duplicate gets 409 `response-not-retained` and is not executed. Default: `false`.
    pub fn discard_responses(self, discard: bool) -> Self {
        self.with(|config| config.discard_responses = discard)
    }

    /// Adds header fields that are not stored, besides those that [are not stored by default](crate::_docs::fields).
    pub fn never_store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.stored_headers.never.extend(names))
    }

    /// Adds header fields that are stored although they are not [by default](crate::_docs::fields), such as `Set-Cookie` or
    /// `Cache-Control`. Fields that frame a message cannot be stored.
    pub fn always_store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.stored_headers.always.extend(names))
    }

    /// Stores only these header fields, and those of [`always_store_headers`](Self::always_store_headers). Default: all
    /// fields except those that [are not stored by default](crate::_docs::fields).
    pub fn only_store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.stored_headers.only = Some(names.into_iter().collect()))
    }

    /// Sets the encoding of stored bodies, for instance an encryption. Default: bodies are stored unchanged.
    pub fn with_body_codec(self, codec: impl BodyCodec) -> Self {
        self.with(|config| config.codec = Some(Arc::new(codec)))
    }
}

/// # What clients are told
impl IdempotencyLayer {
    /// Sets the function that decides whether this caller may receive the stored response. If it returns `false`, the
    /// client gets 403 `replay-refused`.
    ///
    /// Use it if permissions can be revoked between the first request and a replay. Default: every caller with the scope
    /// of the key may receive it.
    pub fn with_replay_guard(self, guard: impl Fn(&Parts, &StoredResponse) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.replay_guard = Some(Arc::new(guard)))
    }

    /// Sets the header field that marks a replay, with the value `true`. Default: `Idempotent-Replayed`.
    pub fn replay_marker(self, name: HeaderName) -> Self {
        self.with(|config| config.marker = name)
    }

    /// Sets a header field that says until when the response is replayed: an HTTP date, by the database's clock.
    ///
    /// It is on first responses and on replays. `Idempotency-Expires` is a good name. Default: none.
    pub fn expiry_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        let name = name.into();
        self.with(|config| config.expiry_header = name)
    }

    /// Sets a header field with an opaque reference, for support tickets and traces.
    ///
    /// The reference is the same for the first response, its replays, and the rejections of its duplicates (there also as
    /// `reference` in the problem document). `Idempotency-Reference` is a good name. Default: none.
    pub fn reference_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        let name = name.into();
        self.with(|config| config.reference_header = name)
    }

    /// Sets a header field, with the value `true`, for responses that will *not* be replayed: the key is free again, or the
    /// response was not stored. `Idempotency-Not-Retained` is a good name. Default: none.
    pub fn not_retained_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        let name = name.into();
        self.with(|config| config.not_retained_header = name)
    }

    /// Sets whether responses and replays repeat the key, in the key's header field. Rejections do not. Default: `false`.
    pub fn echo_key(self, echo: bool) -> Self {
        self.with(|config| config.echo_key = echo)
    }

    /// Sets whether responses and replays carry `Repeatability-Result: accepted`, and rejections `rejected` (OASIS
    /// Repeatable Requests 1.0). Default: `false`.
    pub fn repeatability_result(self, send: bool) -> Self {
        self.with(|config| config.repeatability_result = send)
    }

    /// Sets the beginning of problem types; the name of the kind, such as `key-reused`, is appended. It must be an
    /// absolute URI. Default: [`Rejection::PROBLEM_TYPE_BASE`].
    pub fn problem_type_base(self, base: impl Into<Arc<str>>) -> Self {
        self.with(|config| config.problem_type_base = base.into())
    }

    /// Sets a page that describes the API's use of keys. Rejections link to it, with `Link: <url>; rel="describedby"`.
    /// Default: none.
    pub fn documentation_url(self, url: impl Into<Option<Uri>>) -> Self {
        let url = url.into();
        self.with(|config| config.documentation_url = url)
    }

    /// Sets the challenge in 401 `unscoped`, which HTTP requires (RFC 9110 section 15.5.2). Default: `Bearer`.
    pub fn www_authenticate(self, challenge: HeaderValue) -> Self {
        self.with(|config| config.www_authenticate = challenge)
    }

    /// Sets the status of a kind of rejection, such as 409 for [`KeyReused`](RejectionKind::KeyReused). A status other
    /// than 4xx and 5xx is ignored. Default: [`RejectionKind::status`].
    pub fn rejection_status(self, kind: RejectionKind, status: StatusCode) -> Self {
        self.with(|config| {
            if status.is_client_error() || status.is_server_error() {
                config.statuses.insert(kind, status);
            }
        })
    }

    /// Sets the function that makes the response of a rejection. Default: problem documents (RFC 9457).
    ///
    /// `render` gets the rejection and the head of the request, for instance to read `Accept`, or to send a browser back
    /// to its form:
    ///
    /// ```
    /// # use axum::response::{IntoResponse as _, Redirect};
    /// # use axum_idempotency::{IdempotencyLayer, Rejection};
    /// # fn f(layer: IdempotencyLayer) -> IdempotencyLayer {
    /// layer.with_rejection_response(|rejection, head| {
    ///     let accept = head.headers.get("accept").and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    ///     if accept.contains("text/html") {
    ///         Redirect::to(&format!("/orders/new?problem={}", rejection.kind().name())).into_response()
    ///     } else {
    ///         Rejection::clone(rejection).into_response()
    ///     }
    /// })
    /// # }
    /// ```
    ///
    /// The response may have another status than the rejection: 4xx, 5xx, or 3xx with a `Location`. Any other status is
    /// replaced by that of the rejection. `Cache-Control: no-store` and, for retryable kinds, `Retry-After` are added if
    /// they are missing, and the [`Rejection`] is put into the response's extensions.
    pub fn with_rejection_response(
        self,
        render: impl Fn(&Rejection, &Parts) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.rejection = Some(Arc::new(render)))
    }
}
