-- What became of a key, for an operator.
--
-- $1 scope text
-- $2 operation text
-- $3 key text

select status, pg_catalog.octet_length(body)::bigint as bytes,
       created_at as first_used, expires_at as expires, replay_until,
       coalesce(replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended
  from idempotency.keys
 where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
   and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.statement_timestamp())
