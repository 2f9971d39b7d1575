//! The settings of [`IdempotencyLayer`]: a bare word sets a value, `with_` swaps a function.

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
    /// The name of what the route does. Default: the method and the route's template, such as
    /// `POST /charges/{id}/refund`, or the path itself outside an axum router.
    ///
    /// The default changes when a route is renamed, and its keys are forgotten with it. Where there is no template and
    /// keys [bear a time](Self::timestamped_keys), name it: each operation has a row of its own for good.
    pub fn operation(self, name: impl Into<Operation>) -> Self {
        self.with(|config| config.operation = Some(name.into()))
    }

    /// The application's name, for one that shares a database with others: their keys of the same owner, operation and key
    /// are then different ones. It stands before the operation, with a slash after it. Default: none, and two applications
    /// on one database with the same route answer each other.
    pub fn namespace(self, name: &str) -> Self {
        self.with(|config| config.namespace = Some(name.into()))
    }

    /// A request without a key is refused with 400. This is the default.
    pub fn required(self) -> Self {
        self.with(|config| config.required = true)
    }

    /// A request without a key is executed in a plain transaction, and not remembered. A key that is there but not
    /// valid is refused all the same.
    pub fn optional(self) -> Self {
        self.with(|config| config.required = false)
    }

    /// The methods that the layer handles; requests with others pass through untouched. Default: POST and PATCH.
    ///
    /// GET, HEAD, OPTIONS, TRACE and CONNECT pass through even if they are listed.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let listed = methods.into_iter().filter(|method| !NEVER.contains(method));
        self.with(|config| config.methods = listed.collect())
    }

    /// A request that changes something (any but GET, HEAD, OPTIONS, TRACE and CONNECT) by a method that is not among
    /// [`methods`](Self::methods), and has a key, is refused with 400 `key-not-handled`. Default: it passes through like one
    /// without a key, is executed each time, and its client is not told that the key means nothing.
    pub fn refuse_unhandled_keys(self, refuse: bool) -> Self {
        self.with(|config| config.refuse_unhandled_keys = refuse)
    }

    /// How long keys are remembered, if not as [`Idempotency::retention`](crate::Idempotency::retention) says. A handler
    /// changes it for one response by returning a [`Retention`] as a part of it.
    ///
    /// What does not outlast the wait of a duplicate and the [`handler_timeout`](Self::handler_timeout) together counts as a
    /// millisecond more than those; that is said once, at `WARN`, when the layer is added. Without a time limit only the
    /// wait counts: a handler that takes longer than the retention is executed once, but its response is forgotten at once.
    pub fn retention(self, retention: Retention) -> Self {
        self.with_idempotency(|idempotency| idempotency.retention(retention))
    }

    /// Keys bear a time, if not as [`Idempotency::timestamped_keys`](crate::Idempotency::timestamped_keys) says. A key
    /// without it is refused with 400 `invalid-key`, one that is too old with 412 `key-expired`, and one from the future
    /// with 400 `key-from-future`. A window that is too short counts as longer, as for [`retention`](Self::retention).
    pub fn timestamped_keys(self, keys: TimestampedKeys) -> Self {
        self.with_idempotency(|idempotency| idempotency.timestamped_keys(keys))
    }

    /// What happens to duplicates of a running request, if not what
    /// [`Idempotency::concurrency`](crate::Idempotency::concurrency) says.
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        self.with_idempotency(|idempotency| idempotency.concurrency(concurrency))
    }

    /// How long a handler may take to respond to a request with a key, to the last byte of the body. After that it is
    /// dropped, its work is rolled back, and the client gets 503 `handler-timeout`. Default: 60 seconds, longer than
    /// nearly every client waits. `None`: without a limit. Without a key it counts for handlers that have taken their
    /// [`Tx`](crate::Tx), up to the head of the response.
    ///
    /// A handler that waits for itself is why there is one: it inserts a value by its `Tx`, and then the same value by the
    /// application's pool, which waits for the first. PostgreSQL sees no deadlock in that. The refusal says so, where
    /// another connection waited for the request's transaction.
    ///
    /// A statement that runs in the database meanwhile keeps the key until the server notices that its client is gone:
    /// within two seconds on [the engine's own pool](crate::Idempotency::new). Elsewhere give the role a
    /// `statement_timeout` too.
    pub fn handler_timeout(self, limit: impl Into<Option<Duration>>) -> Self {
        let limit = limit.into();
        self.with(|config| config.handler_timeout = limit)
            .with_idempotency(|idempotency| idempotency.with_handler_timeout(limit.unwrap_or_default()))
    }

    /// A handler that responds with 2xx to a request with a key, and has not taken its [`Tx`](crate::Tx), is refused: 500
    /// `misconfigured`, rolled back. For tests, and for those who want to be sure.
    ///
    /// Such a handler looks protected and is not: what it writes by another connection is neither undone by a 500 nor
    /// committed with its response. Default: it is let through, and said at `WARN`, once for each operation.
    pub fn require_tx(self) -> Self {
        self.with(|config| config.tx_use = TxUse::Required)
    }

    /// A handler that has not taken its [`Tx`](crate::Tx) is let through, and reported at `WARN`, once for each
    /// operation. This is the default; it undoes [`require_tx`](Self::require_tx) and [`without_tx`](Self::without_tx)
    /// for one route.
    pub fn expect_tx(self) -> Self {
        self.with(|config| config.tx_use = TxUse::Expected)
    }

    /// Handlers have no effects in this database, so they need no [`Tx`](crate::Tx), and nothing is said about it.
    pub fn without_tx(self) -> Self {
        self.with(|config| config.tx_use = TxUse::Unneeded)
    }

    /// Settings of PostgreSQL for each request's transaction, from its head, as for row-level security. Default: none.
    ///
    /// They are sent in the message that begins the transaction, for requests with a key and without one, and cost no round
    /// trip. With them a replay takes three round trips even where the process has seen the key.
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

    /// A request whose client goes away, or that an outer timeout gives up, is rolled back, and its key is free. For
    /// handlers that are not worth finishing for nobody.
    ///
    /// Default: it is finished in the background, so that the client's retry finds it done; otherwise a client whose
    /// patience is shorter than the handler could retry for ever.
    pub fn cancel_on_disconnect(self, cancel: bool) -> Self {
        self.with(|config| config.cancel_on_disconnect = cancel)
    }

    /// The largest request body, in bytes; more is refused with 413 before anything is claimed. Default: 1 MiB.
    ///
    /// It holds for requests with a key, whose body is read before the handler sees it. axum's `DefaultBodyLimit`
    /// applies to the handler's extractors besides: the smaller one counts.
    pub fn max_request_bytes(self, limit: usize) -> Self {
        self.with(|config| config.max_request_bytes = limit)
    }
}

/// # Keys
impl IdempotencyLayer {
    /// The name of the header field. Default: `Idempotency-Key`; where the time stands
    /// [beside the key](TimestampedKeys::first_sent), `Repeatability-Request-ID`.
    pub fn key_header(self, name: HeaderName) -> Self {
        self.with(|config| config.header = Some(name))
    }

    /// Accepts keys in double quotes only, as the IETF draft has them. Default: bare keys as well, which is what
    /// nearly every client sends; both forms of a value are one key.
    pub fn quoted_keys_only(self, only: bool) -> Self {
        self.with(|config| config.key.strict = only)
    }

    /// How many characters a key may have; a key of another length is refused, never cut. Default: 1 to 255. Bounds
    /// beyond 1 and [`IdempotencyKey::MAX_LEN`] count as those.
    pub fn key_length(self, length: RangeInclusive<usize>) -> Self {
        let longest = (*length.end()).clamp(1, IdempotencyKey::MAX_LEN);
        let shortest = (*length.start()).clamp(1, longest);
        self.with(|config| config.key.length = shortest..=longest)
    }

    /// Accepts spaces inside keys in double quotes. Default: they are refused, since proxies and logs mangle them.
    pub fn allow_spaces_in_keys(self, allow: bool) -> Self {
        self.with(|config| config.key.spaces = allow)
    }

    /// Keys have to be UUIDs with hyphens; upper and lower case are one key. Default: any key.
    pub fn uuid_keys(self, only: bool) -> Self {
        self.with(|config| config.key.uuid = only)
    }

    /// Keys have to pass `check` as well; others are refused with 400. Default: any key.
    pub fn with_key_check(self, check: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.key.check = Some(Arc::new(check)))
    }
}

/// # What is kept
impl IdempotencyLayer {
    /// What becomes of an answer that does not say so itself. Default: [`Disposition::of`] its status.
    pub fn with_disposition(
        self,
        disposition: impl Fn(&response::Parts) -> Disposition + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.disposition = Some(Arc::new(disposition)))
    }

    /// The largest answer that is kept, in bytes of its body. A larger one is rolled back and answered with 500.
    /// Default: 1 MiB.
    pub fn max_response_bytes(self, limit: usize) -> Self {
        self.with(|config| config.max_response_bytes = limit)
    }

    /// An answer over the limit is given to its caller, whole, and its effects are kept; a later duplicate gets 409
    /// `response-not-retained` and is not executed. Default: it is rolled back and answered with 500.
    pub fn discard_oversized_responses(self, discard: bool) -> Self {
        self.with(|config| config.discard_oversized_responses = discard)
    }

    /// Answers are not kept at all, for those that must not lie in a database: a later duplicate gets 409
    /// `response-not-retained` and is not executed.
    pub fn discard_responses(self, discard: bool) -> Self {
        self.with(|config| config.discard_responses = discard)
    }

    /// Header fields that are not kept, besides those that [are not as a rule](crate::_docs::fields).
    pub fn never_store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.stored_headers.never.extend(names))
    }

    /// Header fields that are kept although they are not [as a rule](crate::_docs::fields), such as `Set-Cookie` or
    /// `Cache-Control`. Those that frame a message cannot be.
    pub fn always_store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.stored_headers.always.extend(names))
    }

    /// Keeps these header fields and no others, besides those of [`always_store_headers`](Self::always_store_headers).
    /// Default: all but those that are never kept.
    pub fn only_store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.stored_headers.only = Some(names.into_iter().collect()))
    }

    /// How bodies lie in the database. Default: as they are.
    pub fn with_body_codec(self, codec: impl BodyCodec) -> Self {
        self.with(|config| config.codec = Some(Arc::new(codec)))
    }
}

/// # What clients are told
impl IdempotencyLayer {
    /// Whether this caller may have this stored answer now; if not, he gets 403 `replay-refused`. Default: he may, since
    /// the key is his owner's. For rights that may have been taken away since: the first answer was given under those
    /// of then.
    pub fn with_replay_guard(self, guard: impl Fn(&Parts, &StoredResponse) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.replay_guard = Some(Arc::new(guard)))
    }

    /// The header field that marks a replay, with the value `true`. Default: `Idempotent-Replayed`.
    pub fn replay_marker(self, name: HeaderName) -> Self {
        self.with(|config| config.marker = name)
    }

    /// A header field that says until when the answer is replayed, on first answers and replays alike: an HTTP date, by
    /// the database's clock. `Idempotency-Expires` is a good name. Default: none.
    pub fn expiry_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        let name = name.into();
        self.with(|config| config.expiry_header = name)
    }

    /// A header field with an opaque reference that is the same for a first answer, its replays, and the refusals of its
    /// duplicates (there also as `reference` in the problem document), for support tickets and traces.
    /// `Idempotency-Reference` is a good name. Default: none.
    pub fn reference_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        let name = name.into();
        self.with(|config| config.reference_header = name)
    }

    /// A header field, with the value `true`, on answers that will *not* be replayed: the key is free again, or the
    /// answer was not retained. `Idempotency-Not-Retained` is a good name. Default: none.
    pub fn not_retained_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        let name = name.into();
        self.with(|config| config.not_retained_header = name)
    }

    /// Answers repeat the key, in the header field that it came in; refusals do not. Default: nothing does.
    pub fn echo_key(self, echo: bool) -> Self {
        self.with(|config| config.echo_key = echo)
    }

    /// `Repeatability-Result: accepted` on answers and replays, and `rejected` on refusals (OASIS Repeatable Requests
    /// 1.0). Default: no such field.
    pub fn repeatability_result(self, send: bool) -> Self {
        self.with(|config| config.repeatability_result = send)
    }

    /// What problem types begin with; the name of the condition, such as `key-reused`, is appended. Must be an
    /// absolute URI. Default: [`Rejection::PROBLEM_TYPE_BASE`].
    pub fn problem_type_base(self, base: impl Into<Arc<str>>) -> Self {
        self.with(|config| config.problem_type_base = base.into())
    }

    /// A page that describes the API's use of keys: refusals link to it, by `Link: <url>; rel="describedby"`. Default:
    /// none.
    pub fn documentation_url(self, url: impl Into<Option<Uri>>) -> Self {
        let url = url.into();
        self.with(|config| config.documentation_url = url)
    }

    /// The challenge in 401 `unscoped`, which HTTP demands (RFC 9110 section 15.5.2). Default: `Bearer`.
    pub fn www_authenticate(self, challenge: HeaderValue) -> Self {
        self.with(|config| config.www_authenticate = challenge)
    }

    /// The status of a kind of refusal, such as 409 for [`KeyReused`](RejectionKind::KeyReused). Anything but 4xx and
    /// 5xx is ignored. Default: as [`RejectionKind`] says.
    pub fn rejection_status(self, kind: RejectionKind, status: StatusCode) -> Self {
        self.with(|config| {
            if status.is_client_error() || status.is_server_error() {
                config.statuses.insert(kind, status);
            }
        })
    }

    /// How the layer's own refusals look. Default: problem documents (RFC 9457).
    ///
    /// `render` gets the refusal and the head of the request, for instance to look at `Accept`, or to send a browser's form
    /// back to its page:
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
    /// The status may be another one: 4xx, 5xx, or 3xx with a `Location`. Otherwise the refusal's own is set.
    /// `Cache-Control: no-store` and, where it helps, `Retry-After` are added if they are missing, and the [`Rejection`]
    /// is put into the response's extensions.
    pub fn with_rejection_response(
        self,
        render: impl Fn(&Rejection, &Parts) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.rejection = Some(Arc::new(render)))
    }
}
