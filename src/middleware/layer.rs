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

    #[tokio::test]
    async fn each_switch_and_each_optional_setting_can_be_taken_back_for_one_route() {
        use axum::http::{HeaderName, Uri};

        let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/nothing").expect("a URL");
        let layer = IdempotencyLayer::new(Idempotency::new(&pool), |_| Some(Scope::global()));
        let name = HeaderName::from_static("x-a");
        let switched = |on: bool| {
            let (name, url) = (on.then(|| name.clone()), on.then(|| Uri::from_static("https://a.example/")));
            layer
                .clone()
                .quoted_keys_only(on)
                .allow_spaces_in_keys(on)
                .uuid_keys(on)
                .canonical_json(on)
                .json_rpc(on)
                .form_in_any_order(on)
                .query_in_any_order(on)
                .discard_responses(on)
                .discard_oversized_responses(on)
                .cancel_on_disconnect(on)
                .refuse_unhandled_keys(on)
                .echo_key(on)
                .repeatability_result(on)
                .expiry_header(name.clone())
                .reference_header(name.clone())
                .not_retained_header(name)
                .documentation_url(url)
        };
        let told = |layer: &IdempotencyLayer| {
            let config = layer.config();
            let content = config.fingerprint.content;
            let switches = [
                config.key.strict,
                config.key.spaces,
                config.key.uuid,
                content.canonical_json,
                content.json_rpc,
                content.form_in_any_order,
                config.fingerprint.query_in_any_order,
                config.discard_responses,
                config.discard_oversized_responses,
                config.cancel_on_disconnect,
                config.refuse_unhandled_keys,
                config.echo_key,
                config.repeatability_result,
            ];
            let options = [
                config.expiry_header.is_some(),
                config.reference_header.is_some(),
                config.not_retained_header.is_some(),
                config.documentation_url.is_some(),
            ];
            (switches, options)
        };
        assert_eq!(told(&layer), ([false; 13], [false; 4]));
        assert_eq!(told(&switched(true)), ([true; 13], [true; 4]));
        assert_eq!(told(&switched(false)), told(&layer));
        let required = layer.clone().require_tx().expect_tx();
        assert_eq!(required.config().tx_use, layer.config().tx_use);
    }
}
