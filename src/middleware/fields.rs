//! To what a response's field belongs, which decides whether it is kept.

/// What a field speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belongs {
    /// The resource, the representation in the body, or what the operation came to: it is as true of a replay.
    Response,
    /// How the message is framed on this connection, and when it was made: made anew for each response.
    Message,
    /// This exchange: its path through proxies, its traces and identifiers, what the server measured or allows now.
    Exchange,
    /// What caches may do with the first response. A replay is never cached.
    Cache,
    /// Who someone is, or may be: it must not lie in a table, nor begin a new life with each replay.
    Credentials,
}

use Belongs::{Cache, Credentials, Exchange, Message, Response};

/// The names of IANA's HTTP Field Name Registry, and those that are as good as registered, in alphabetical order. What
/// only a request carries means nothing in a response, and is kept like what is unknown, unless it holds credentials.
const FIELDS: &[(&str, Belongs)] = &[
    ("a-im", Response),
    ("accept", Response),
    ("accept-additions", Response),
    ("accept-ch", Response),
    ("accept-charset", Response),
    ("accept-datetime", Response),
    ("accept-encoding", Response),
    ("accept-features", Response),
    ("accept-language", Response),
    ("accept-patch", Response),
    ("accept-post", Response),
    ("accept-query", Response),
    ("accept-ranges", Response),
    ("accept-signature", Exchange),
    ("access-control", Response),
    ("access-control-allow-credentials", Response),
    ("access-control-allow-headers", Response),
    ("access-control-allow-methods", Response),
    ("access-control-allow-origin", Response),
    ("access-control-expose-headers", Response),
    ("access-control-max-age", Response),
    ("access-control-request-headers", Response),
    ("access-control-request-method", Response),
    ("activate-storage-access", Exchange),
    ("age", Message),
    ("allow", Response),
    ("alpn", Exchange),
    ("alt-svc", Exchange),
    ("alt-used", Exchange),
    ("alternates", Response),
    ("amp-cache-transform", Cache),
    ("apply-to-redirect-ref", Response),
    ("authentication-control", Credentials),
    ("authentication-info", Credentials),
    ("authorization", Credentials),
    ("available-dictionary", Exchange),
    ("b3", Exchange),
    ("baggage", Exchange),
    ("c-ext", Response),
    ("c-man", Response),
    ("c-opt", Response),
    ("c-pep", Response),
    ("c-pep-info", Response),
    ("cache-control", Cache),
    ("cache-status", Cache),
    ("cal-managed-id", Response),
    ("caldav-timezones", Response),
    ("capsule-protocol", Message),
    ("cdn-cache-control", Cache),
    ("cdn-loop", Exchange),
    ("cert-not-after", Response),
    ("cert-not-before", Response),
    ("clear-site-data", Credentials),
    ("client-cert", Credentials),
    ("client-cert-chain", Credentials),
    ("close", Message),
    ("cmcd-object", Exchange),
    ("cmcd-request", Exchange),
    ("cmcd-session", Exchange),
    ("cmcd-status", Exchange),
    ("cmsd-dynamic", Exchange),
    ("cmsd-static", Response),
    ("concealed-auth-export", Credentials),
    ("configuration-context", Response),
    ("connection", Message),
    ("content-base", Response),
    ("content-digest", Response),
    ("content-disposition", Response),
    ("content-encoding", Response),
    ("content-id", Response),
    ("content-language", Response),
    ("content-length", Message),
    ("content-location", Response),
    ("content-md5", Response),
    ("content-range", Response),
    ("content-script-type", Response),
    ("content-security-policy", Response),
    ("content-security-policy-report-only", Response),
    ("content-style-type", Response),
    ("content-type", Response),
    ("content-version", Response),
    ("cookie", Credentials),
    ("cookie2", Credentials),
    ("cross-origin-embedder-policy", Response),
    ("cross-origin-embedder-policy-report-only", Response),
    ("cross-origin-opener-policy", Response),
    ("cross-origin-opener-policy-report-only", Response),
    ("cross-origin-resource-policy", Response),
    ("cta-common-access-token", Credentials),
    ("dasl", Response),
    ("date", Message),
    ("dav", Response),
    ("default-style", Response),
    ("delta-base", Response),
    ("deprecation", Response),
    ("depth", Response),
    ("derived-from", Response),
    ("destination", Response),
    ("detached-jws", Response),
    ("dictionary-id", Exchange),
    ("differential-id", Response),
    ("digest", Response),
    ("dpop", Credentials),
    ("dpop-nonce", Credentials),
    ("early-data", Exchange),
    ("ediint-features", Response),
    ("etag", Response),
    ("expect", Response),
    ("expect-ct", Exchange),
    ("expires", Cache),
    ("ext", Response),
    ("forwarded", Exchange),
    ("from", Response),
    ("getprofile", Response),
    ("hobareg", Credentials),
    ("host", Response),
    ("http2-settings", Message),
    ("if", Response),
    ("if-match", Response),
    ("if-modified-since", Response),
    ("if-none-match", Response),
    ("if-range", Response),
    ("if-schedule-tag-match", Response),
    ("if-unmodified-since", Response),
    ("im", Response),
    ("include-referred-token-binding-id", Credentials),
    ("incremental", Exchange),
    ("isolation", Response),
    ("keep-alive", Message),
    ("label", Response),
    ("last-event-id", Response),
    ("last-modified", Response),
    ("link", Response),
    ("link-template", Response),
    ("location", Response),
    ("lock-token", Response),
    ("man", Response),
    ("max-forwards", Exchange),
    ("memento-datetime", Response),
    ("meter", Exchange),
    ("method-check", Response),
    ("method-check-expires", Cache),
    ("mime-version", Response),
    ("negotiate", Response),
    ("nel", Exchange),
    ("odata-entityid", Response),
    ("odata-isolation", Response),
    ("odata-maxversion", Response),
    ("odata-version", Response),
    ("opt", Response),
    ("optional-www-authenticate", Credentials),
    ("ordering-type", Response),
    ("origin", Response),
    ("origin-agent-cluster", Response),
    ("oscore", Message),
    ("oslc-core-version", Response),
    ("overwrite", Response),
    ("p3p", Response),
    ("pep", Response),
    ("pep-info", Response),
    ("permissions-policy", Response),
    ("pics-label", Response),
    ("ping-from", Response),
    ("ping-to", Response),
    ("position", Response),
    ("pragma", Cache),
    ("prefer", Response),
    ("preference-applied", Response),
    ("priority", Exchange),
    ("profileobject", Response),
    ("protocol", Response),
    ("protocol-info", Response),
    ("protocol-query", Response),
    ("protocol-request", Response),
    ("proxy-authenticate", Credentials),
    ("proxy-authentication-info", Credentials),
    ("proxy-authorization", Credentials),
    ("proxy-connection", Message),
    ("proxy-features", Exchange),
    ("proxy-instruction", Exchange),
    ("proxy-status", Exchange),
    ("public", Response),
    ("public-key-pins", Exchange),
    ("public-key-pins-report-only", Exchange),
    ("range", Response),
    ("ratelimit", Exchange),
    ("ratelimit-limit", Exchange),
    ("ratelimit-policy", Exchange),
    ("ratelimit-remaining", Exchange),
    ("ratelimit-reset", Exchange),
    ("redirect-ref", Response),
    ("referer", Response),
    ("referer-root", Response),
    ("referrer-policy", Response),
    ("refresh", Response),
    ("repeatability-client-id", Response),
    ("repeatability-first-sent", Response),
    ("repeatability-request-id", Response),
    ("repeatability-result", Response),
    ("replay-nonce", Credentials),
    ("report-to", Exchange),
    ("reporting-endpoints", Exchange),
    ("repr-digest", Response),
    ("request-id", Exchange),
    ("retry-after", Response),
    ("safe", Response),
    ("schedule-reply", Response),
    ("schedule-tag", Response),
    ("sec-gpc", Response),
    ("sec-purpose", Response),
    ("sec-token-binding", Credentials),
    ("sec-websocket-accept", Message),
    ("sec-websocket-extensions", Message),
    ("sec-websocket-key", Message),
    ("sec-websocket-protocol", Message),
    ("sec-websocket-version", Message),
    ("security-scheme", Response),
    ("server", Exchange),
    ("server-timing", Exchange),
    ("set-cookie", Credentials),
    ("set-cookie2", Credentials),
    ("set-txn", Exchange),
    ("setprofile", Response),
    ("signature", Exchange),
    ("signature-input", Exchange),
    ("slug", Response),
    ("soapaction", Response),
    ("status-uri", Response),
    ("strict-transport-security", Exchange),
    ("sunset", Response),
    ("surrogate-capability", Cache),
    ("surrogate-control", Cache),
    ("surrogate-key", Cache),
    ("tcn", Response),
    ("te", Message),
    ("timeout", Response),
    ("timing-allow-origin", Response),
    ("topic", Response),
    ("traceparent", Exchange),
    ("traceresponse", Exchange),
    ("tracestate", Exchange),
    ("trailer", Message),
    ("transfer-encoding", Message),
    ("ttl", Response),
    ("upgrade", Message),
    ("urgency", Response),
    ("uri", Response),
    ("use-as-dictionary", Cache),
    ("user-agent", Response),
    ("variant-vary", Response),
    ("vary", Response),
    ("via", Exchange),
    ("want-content-digest", Response),
    ("want-digest", Response),
    ("want-repr-digest", Response),
    ("warning", Cache),
    ("www-authenticate", Credentials),
    ("x-content-type-options", Response),
    ("x-frame-options", Response),
];

/// What an unregistered name says of itself by a word in it, where words are parted by hyphens or underscores.
const WORDS: &[(&[&str], Belongs)] = &[
    (
        &["auth", "authentication", "authorization", "credential", "credentials", "csrf", "xsrf", "csrftoken", "jwt"],
        Credentials,
    ),
    (&["apikey", "cookie", "password", "passwd", "secret", "session", "sessionid", "otp"], Credentials),
    (&["ratelimit", "correlationid", "requestid", "traceid", "spanid", "b3"], Exchange),
];

/// Likewise by two words, one after the other.
const PAIRS: &[(&[&str], Belongs)] = &[
    (&["api-key", "access-token", "refresh-token", "id-token", "security-token", "bearer-token"], Credentials),
    (&["rate-limit", "correlation-id", "request-id", "trace-id", "trace-context", "span-id"], Exchange),
    (&["cache-status", "cache-control"], Cache),
];

/// To what the field of this name belongs, in lower case. What says nothing of itself belongs to the response (RFC 9111
/// section 3.1 has caches keep what they do not know).
pub(super) fn belongs(name: &str) -> Belongs {
    if let Ok(at) = FIELDS.binary_search_by(|(field, _)| (*field).cmp(name)) {
        return FIELDS[at].1;
    }
    let mut before = "";
    for word in name.split(['-', '_']) {
        let by_word = WORDS.iter().find(|(words, _)| words.contains(&word));
        let is_pair = |pair: &&str| pair.split_once('-') == Some((before, word));
        let by_pair = PAIRS.iter().find(|(pairs, _)| pairs.iter().any(is_pair));
        if let Some((_, belongs)) = by_word.or(by_pair) {
            return *belongs;
        }
        before = word;
    }
    Response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_assigned_once_and_can_be_found() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order, and none twice");
        for (name, of) in FIELDS {
            assert!(name.parse::<axum::http::HeaderName>().is_ok_and(|parsed| parsed.as_str() == *name), "{name}");
            assert_eq!(belongs(name), *of, "{name}");
        }
    }

    #[test]
    fn f86_credentials_are_known_by_what_they_are_called() {
        for name in [
            "authorization",
            "proxy-authorization",
            "set-cookie",
            "set-cookie2",
            "x-auth-token",
            "x-csrf-token",
            "x-xsrf-token",
            "x-amz-security-token",
            "dpop-nonce",
            "x-api-key",
            "apikey",
            "x-access-token",
            "x-session-id",
            "x_session_id",
            "x-client-secret",
            "x-refresh-token",
            "x-goog-iap-jwt-assertion",
            "x-forwarded-authorization",
        ] {
            assert_eq!(belongs(name), Credentials, "{name}");
        }
        // A token that names a page, and the words within other words.
        for name in
            ["x-continuation-token", "x-next-page-token", "x-author", "x-secretary", "x-obsession", "lock-token"]
        {
            assert_eq!(belongs(name), Response, "{name}");
        }
    }

    #[test]
    fn f88_identifiers_of_an_exchange_and_what_caches_may_do_are_known_as_well() {
        for name in [
            "x-correlation-id",
            "request-id",
            "x-trace-id",
            "b3",
            "x-b3-traceid",
            "x-b3-sampled",
            "traceresponse",
            "x-amzn-requestid",
            "x-amz-request-id",
            "x-ms-request-id",
            "x-request-id",
            "x-ratelimit-limit",
            "x-rate-limit-remaining",
            "x-cloud-trace-context",
        ] {
            assert_eq!(belongs(name), Exchange, "{name}");
        }
        for name in ["cdn-cache-control", "surrogate-control", "cloudflare-cdn-cache-control", "cf-cache-status"] {
            assert_eq!(belongs(name), Cache, "{name}");
        }
        for name in ["x-order-id", "x-request-cost", "x-total-count", "location", "etag", "retry-after"] {
            assert_eq!(belongs(name), Response, "{name}");
        }
    }
}
