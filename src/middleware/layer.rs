use std::sync::Arc;

use axum::http::request::Parts;
use tower_layer::Layer;

use super::{config::Config, service::IdempotencyService};
use crate::{Idempotency, Scope};

/// A Tower layer that makes the routes it wraps safe to retry. See the [module docs](crate::middleware) for the contract and
/// an example.
///
/// A setter without prefix sets a value, and one that begins with `with_` sets a function. Cloning is cheap: give a route
/// with other settings a changed clone.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is added to a route"]
pub struct IdempotencyLayer(Arc<Config>);

impl IdempotencyLayer {
    /// Makes a layer that keeps its keys with `idempotency` and finds a request's owner with `scope`.
    ///
    /// `scope` gets the request's head, with its extensions: let the authentication, in an outer layer, put the owner
    /// there. If it returns `None`, or a blank name, a request with a key is refused with 401: unauthenticated requests
    /// never share a scope. An application with one owner writes `|_| Some(Scope::global())`.
    pub fn new(idempotency: Idempotency, scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Config::new(idempotency, Arc::new(scope))))
    }

    pub(super) fn config(&self) -> &Config {
        &self.0
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    pub(super) fn with_idempotency(self, change: impl FnOnce(Idempotency) -> Idempotency) -> Self {
        self.with(|config| {
            config.idempotency = change(config.idempotency.clone());
            config.raised = Arc::default();
        })
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        self.0.say_what_is_raised();
        IdempotencyService::new(inner, self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::postgres::PgPoolOptions;

    use super::*;

    #[tokio::test]
    async fn f93_a_handler_is_bounded_unless_the_route_says_otherwise() {
        let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/nothing").expect("a URL");
        let layer = IdempotencyLayer::new(Idempotency::new(&pool), |_| Some(Scope::global()));
        let minute = Duration::from_secs(60);
        assert_eq!(layer.config().handler_timeout, Some(minute));
        assert_eq!(layer.clone().handler_timeout(2 * minute).config().handler_timeout, Some(2 * minute));
        assert_eq!(layer.handler_timeout(None).config().handler_timeout, None);
    }
}
