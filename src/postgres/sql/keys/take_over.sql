-- Claims a key whose row has expired, once its advisory lock is this transaction's: as if the
-- pruner had been there. If another transaction is at the row, it waits for that one, at most so
-- long. A claim that this very transaction holds is not taken over.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 fingerprint bytea
-- $5 keep interval
-- $6 replay interval
-- $7 status smallint
-- $8 header_names text[]
-- $9 header_values bytea[]
-- $10 body bytea
-- $11 lock_timeout text
-- $12 claims text

with setting as materialized (
  select pg_catalog.current_setting('lock_timeout') as lock_timeout
), gate as materialized (
  select pg_catalog.set_config('lock_timeout', $11, true) as bound from setting
), claim as (
  update idempotency.keys present
     set fingerprint = $4, born_at = null,
         created_at = pg_catalog.now(),
         expires_at = pg_catalog.now() operator(pg_catalog.+) $5,
         replay_until = pg_catalog.now() operator(pg_catalog.+) $6,
         status = $7, header_names = $8, header_values = $9, body = $10
    from gate
   where (present.scope, present.operation, present.key) operator(pg_catalog.=) ($1, $2, $3)
     and present.expires_at operator(pg_catalog.<=) pg_catalog.statement_timestamp()
     and (present.status is not null or present.created_at operator(pg_catalog.<>) pg_catalog.now())
  returning present.created_at, present.expires_at, present.replay_until
)
select claim.created_at is not null as ours, null::pg_catalog.text as place,
       claim.created_at as first_used, claim.expires_at as expires, claim.replay_until,
       pg_catalog.set_config('lock_timeout', setting.lock_timeout, true),
       case when claim.created_at is not null and $12::pg_catalog.text is not null
         then pg_catalog.set_config('idempotency.claims', $12, true) end
  from setting
  left join claim on true
