use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header},
    response::Response,
};
use axum_idempotency::{Rejection, RejectionKind};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

/// A request in the making. Its owner is `alice`, unless it says otherwise.
pub struct Ask(Request<Body>);

pub fn post(path: &str) -> Ask {
    Ask::new(Method::POST, path).header("x-owner", "alice")
}

pub fn get(path: &str) -> Ask {
    Ask::new(Method::GET, path).header("x-owner", "alice")
}

impl Ask {
    pub fn new(method: Method, path: &str) -> Self {
        Self(Request::builder().method(method).uri(path).body(Body::empty()).unwrap())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.0.headers_mut().append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        self
    }

    pub fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub fn owner(mut self, owner: &str) -> Self {
        self.0.headers_mut().remove("x-owner");
        self.header("x-owner", owner)
    }

    pub fn nobody(mut self) -> Self {
        self.0.headers_mut().remove("x-owner");
        self
    }

    pub fn body(mut self, body: impl Into<Body>) -> Self {
        *self.0.body_mut() = body.into();
        self
    }

    pub fn json(self, value: Value) -> Self {
        self.header(header::CONTENT_TYPE.as_str(), "application/json").body(value.to_string())
    }

    pub fn into_request(self) -> Request<Body> {
        self.0
    }
}

impl From<Request<Body>> for Ask {
    fn from(request: Request<Body>) -> Self {
        Self(request)
    }
}

/// An answer that was read to its end.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub rejection: Option<Rejection>,
}

impl Reply {
    pub async fn read(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        Self {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.expect("a body").to_bytes(),
            rejection: parts.extensions.get().cloned(),
        }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Did it come with the marker?
    pub fn replayed(&self) -> bool {
        match self.headers.get_all("idempotent-replayed").iter().collect::<Vec<_>>()[..] {
            [] => false,
            [marker] => {
                assert_eq!(marker, "true", "the marker's only value");
                true
            }
            _ => panic!("the marker came more than once"),
        }
    }

    pub fn kind(&self) -> Option<RejectionKind> {
        self.rejection.as_ref().map(Rejection::kind)
    }

    /// Is it this refusal, as a problem document that says so?
    #[track_caller]
    pub fn assert_refused(&self, kind: RejectionKind) {
        assert_eq!(self.kind(), Some(kind), "{self:?}");
        assert_eq!(self.status, kind.status());
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(self.headers[header::CACHE_CONTROL], "no-store");
        assert!(!self.replayed());
        let problem = self.json();
        assert!(problem["type"].as_str().expect("a type").ends_with(kind.name()), "{problem}");
        assert_eq!(problem["status"], kind.status().as_u16());
        assert_eq!(problem["retryable"], kind.is_retryable());
        assert_eq!(self.headers.contains_key(header::RETRY_AFTER), kind.is_retryable());
        let occurrence = self.rejection.as_ref().map(Rejection::occurrence).expect("a refusal");
        assert_eq!(problem["occurrence"], occurrence.as_str());
    }
}

/// Asks `app` and waits for the whole answer.
pub async fn reply(app: &Router, ask: Ask) -> Reply {
    let response = app.clone().oneshot(ask.into_request()).await.expect("a router does not fail");
    Reply::read(response).await
}

/// Serves `app` on loopback, as long as the test's runtime lives.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

/// Where a handler stops until the test lets it go on.
#[derive(Clone)]
pub struct Gate {
    entered: Arc<Semaphore>,
    opened: Arc<Semaphore>,
}

impl Gate {
    pub fn closed() -> Self {
        Self { entered: Arc::new(Semaphore::new(0)), opened: Arc::new(Semaphore::new(0)) }
    }

    /// In the handler: says that it is here, and waits.
    pub async fn pass(&self) {
        self.entered.add_permits(1);
        self.opened.acquire().await.unwrap().forget();
    }

    /// In the test: waits until a handler is there.
    pub async fn entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    /// Lets one handler go on.
    pub fn open(&self) {
        self.opened.add_permits(1);
    }
}
