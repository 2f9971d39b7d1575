-- The response, if there is one: where this process has seen the key, and after a claim has found a
-- row that its own snapshot could not show.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 born timestamptz

select fingerprint, status, header_names, header_values, body, born_at as born,
       created_at as first_used, expires_at as expires, replay_until,
       coalesce(replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended
  from idempotency.timed_keys
 where (scope, operation, key, born_at) operator(pg_catalog.=) ($1, $2, $3, $4)
   and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.statement_timestamp())
