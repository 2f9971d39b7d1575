-- What became of a key, for an operator.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 born timestamptz

select status, pg_catalog.octet_length(body)::bigint as bytes,
       created_at as first_used, expires_at as expires, replay_until,
       coalesce(replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended
  from idempotency.timed_keys
 where (scope, operation, key, born_at) operator(pg_catalog.=) ($1, $2, $3, $4)
   and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.statement_timestamp())
