//! R38: effects are committed if and only if the answer is stored.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use axum_idempotency::{ClaimUsing, Disposition, IdempotentRequest, RejectionKind, StoredResponse, Tx};

use crate::support::{Database, Gate, Runs, answering, app, app_with, create, effect, engine, layer, post, reply};

#[tokio::test]
async fn r38_f29_f43_f58_the_table_by_status() {
    for (status, effects, rows) in [
        (200, 1, 1),
        (201, 1, 1),
        (204, 1, 1),
        (303, 1, 1),
        (402, 0, 1),
        (409, 0, 1),
        (410, 0, 1),
        (451, 0, 1),
        (400, 0, 0),
        (401, 0, 0),
        (404, 0, 0),
        (412, 0, 0),
        (422, 0, 0),
        (429, 0, 0),
        (500, 0, 0),
        (503, 0, 0),
    ] {
        let database = Database::fresh().await;
        let app = app(&database.pool().await, answering(status));
        let first = reply(&app, post("/things").key("k")).await;
        assert_eq!(first.status, status);
        assert_eq!(database.effects().await, effects, "effects of {status}");
        assert_eq!(database.rows().await.len(), rows, "rows of {status}");

        let retry = reply(&app, post("/things").key("k")).await;
        assert_eq!(retry.status, status);
        assert_eq!(retry.replayed(), rows == 1, "a retry of {status}");
        assert_eq!(database.effects().await, effects, "effects of a retry of {status}");
        if rows == 1 {
            assert_eq!(retry.body, first.body);
        }
    }
}

#[tokio::test]
async fn f29_f43_a_released_key_executes_when_the_cause_is_gone() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::INTERNAL_SERVER_ERROR, StatusCode::CREATED][counted.one() - 1]
    });
    assert_eq!(reply(&app, post("/things").key("k").body("wrong")).await.status, 422);
    // A corrected request may use the key.
    assert_eq!(reply(&app, post("/things").key("k").body("right")).await.status, 500);
    assert_eq!(reply(&app, post("/things").key("k").body("right")).await.status, 201);
    assert!(reply(&app, post("/things").key("k").body("right")).await.replayed());
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn r40_a_handler_overrides_the_table_for_one_response() {
    for (status, disposition, effects, rows) in [
        (400, Disposition::Commit, 1, 1),
        (500, Disposition::Commit, 1, 1),
        (200, Disposition::Release, 0, 0),
        (200, Disposition::Reject, 0, 1),
        (402, Disposition::Release, 0, 0),
    ] {
        let database = Database::fresh().await;
        let app = app(&database.pool().await, move |mut tx: Tx| async move {
            effect(&mut tx).await;
            (StatusCode::from_u16(status).unwrap(), disposition)
        });
        assert_eq!(reply(&app, post("/things").key("k")).await.status, status);
        assert_eq!(database.effects().await, effects, "{status} {disposition:?}");
        assert_eq!(database.rows().await.len(), rows, "{status} {disposition:?}");
    }
}

#[tokio::test]
async fn r40_the_table_is_replaceable_for_a_layer() {
    let database = Database::fresh().await;
    let keep_all = layer(engine(&database.pool().await)).with_disposition(|_| Disposition::Commit);
    let app = app_with(keep_all, answering(404));
    reply(&app, post("/things").key("k")).await;
    assert!(reply(&app, post("/things").key("k")).await.replayed());
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn r39_a_rejection_is_stored_although_a_statement_had_failed() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
        (StatusCode::CONFLICT, "no")
    });
    let first = reply(&app, post("/things").key("k")).await;
    assert_eq!((first.status, first.text()), (StatusCode::CONFLICT, "no"));
    let retry = reply(&app, post("/things").key("k")).await;
    assert!(retry.replayed());
    assert_eq!(retry.text(), "no");
    assert_eq!(database.effects().await, 0);
}

/// Between the rollback and the stored rejection another process may execute. Its answer then counts.
#[tokio::test]
async fn r39_a_rejection_that_was_overtaken_gives_the_other_ones_answer() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let (tell, told) = tokio::sync::oneshot::channel::<IdempotentRequest>();
    let tell = std::sync::Arc::new(std::sync::Mutex::new(Some(tell)));
    let slow = app(&database.pool().await, move |_tx: Tx, request: IdempotentRequest| async move {
        let tell = tell.lock().unwrap().take().expect("it runs once");
        tell.send(request).unwrap();
        inside.pass().await;
        (StatusCode::PAYMENT_REQUIRED, "declined")
    });
    let first = tokio::spawn(async move { reply(&slow, post("/things").key("k")).await });
    let request = told.await.unwrap();
    gate.entered().await;
    let mut elsewhere = database.overtake(|| gate.open()).await;
    let idempotency = engine(&database.pool().await);
    let claimed = idempotency.claim_using(&mut elsewhere, &request).await.unwrap();
    assert!(matches!(claimed, ClaimUsing::Fresh));
    effect(&mut elsewhere).await;
    let answer = StoredResponse::new(StatusCode::OK, "accepted");
    idempotency.complete_using(&mut elsewhere, &request, &answer).await.unwrap();
    elsewhere.commit().await.unwrap();

    let first = first.await.unwrap();
    assert_eq!((first.status, first.text(), first.replayed()), (StatusCode::OK, "accepted", true));
    assert_eq!(database.effects().await, 1);
}

/// Each that declines rolls back first, and another may get the key then; so may the next. All get the decision.
#[tokio::test(flavor = "multi_thread")]
async fn r39_every_duplicate_of_a_declined_request_in_every_process_gets_the_decision() {
    let database = Database::fresh().await;
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(app(&database.pool_of(2).await, answering(402)));
    }
    let replies = crate::support::all((0..320).map(|n| {
        let app = processes[n % 4].clone();
        async move { reply(&app, post("/things").key(&(n / 32).to_string())).await }
    }))
    .await;
    let statuses: std::collections::BTreeSet<u16> = replies.iter().map(|reply| reply.status.as_u16()).collect();
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), [402]);
    for key in replies.chunks(32) {
        assert!(key.iter().all(|reply| reply.body == key[0].body), "one decision for a key");
    }
    assert_eq!((database.effects().await, database.rows().await.len()), (0, 10));
}

#[tokio::test]
async fn r41_the_layers_own_refusals_are_not_stored() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    for ask in [post("/things"), post("/things").key("a b"), post("/things").key("k").nobody()] {
        assert!(reply(&app, ask).await.status.is_client_error());
    }
    reply(&app, post("/things").key("k").body(vec![0; 2 * 1024 * 1024]))
        .await
        .assert_refused(RejectionKind::RequestTooLarge);
    assert_eq!(database.rows().await, []);
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn an_answer_without_a_body_is_kept_like_any_other() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        Response::new(axum::body::Body::empty())
    });
    assert_eq!(reply(&app, post("/things").key("k")).await.body, "");
    let retry = reply(&app, post("/things").key("k")).await;
    assert!(retry.replayed());
    assert_eq!((retry.status, retry.text()), (StatusCode::OK, ""));
}

#[tokio::test]
async fn a_renderer_of_the_applications_changes_the_body_and_not_the_reason() {
    let database = Database::fresh().await;
    let own = layer(engine(&database.pool().await))
        .with_rejection_response(|rejection, _| format!("error={}", rejection.kind().name()).into_response());
    let refused = reply(&app_with(own, create), post("/things")).await;
    assert_eq!((refused.status, refused.text()), (StatusCode::BAD_REQUEST, "error=missing-key"));
    assert_eq!(refused.kind(), Some(RejectionKind::MissingKey));
}
