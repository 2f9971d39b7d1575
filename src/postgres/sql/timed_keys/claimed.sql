-- What there is to see of a claim: when it was made, until when it is kept, and whether it still
-- waits for its response.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 born timestamptz

select created_at as first_used, pg_catalog.statement_timestamp() as asked_at,
       expires_at as expires, replay_until,
       status is null as unanswered, created_at operator(pg_catalog.=) pg_catalog.now() as own
  from idempotency.timed_keys
 where (scope, operation, key, born_at) operator(pg_catalog.=) ($1, $2, $3, $4)
