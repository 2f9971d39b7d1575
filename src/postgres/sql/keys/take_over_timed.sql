-- Likewise for a key that carries a timestamp, which is judged again, since it may have waited. Only where
-- the time stands beside the key can one that is timely have a row that has expired, or where its
-- operation had keys without times before.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 fingerprint bytea
-- $5 born timestamptz
-- $6 replay interval
-- $7 status smallint
-- $8 header_names text[]
-- $9 header_values bytea[]
-- $10 body bytea
-- $11 expires_at timestamptz
-- $12 lock_timeout text
-- $13 claims text
-- $14 accepted interval

with setting as materialized (
  select pg_catalog.current_setting('lock_timeout') as lock_timeout
), gate as materialized (
  select pg_catalog.set_config('lock_timeout', $12, true) as bound from setting
), claim as (
  update idempotency.keys present
     set fingerprint = $4, born_at = $5,
         created_at = pg_catalog.now(),
         expires_at = $11,
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
       case when claim.created_at is not null
                 and $5 operator(pg_catalog.<) (pg_catalog.clock_timestamp() operator(pg_catalog.-) $14::interval)
         then 'expired' end as verdict,
       pg_catalog.set_config('lock_timeout', setting.lock_timeout, true),
       case when claim.created_at is not null and $13::pg_catalog.text is not null
         then pg_catalog.set_config('idempotency.claims', $13, true) end
  from setting
  left join claim on true
