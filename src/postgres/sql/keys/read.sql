-- The response, if there is one: where this process has seen the key, and after a claim has found a
-- row that its own snapshot could not show.
--
-- $1 scope text
-- $2 operation text
-- $3 key text

select fingerprint, status, header_names, header_values, body, born_at as born,
       created_at as first_used, expires_at as expires, replay_until,
       coalesce(replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended
  from idempotency.keys
 where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
   and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.statement_timestamp())
