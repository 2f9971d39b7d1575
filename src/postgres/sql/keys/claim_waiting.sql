-- Claims a key for one that waits for the transaction that holds the row. Top to bottom:
--
-- 1. `live` looks for a response.
-- 2. `setting` remembers `lock_timeout`; `gate` sets ours and takes the row's advisory lock: here
--    they queue, and PostgreSQL wakes the next one at once.
-- 3. `claim` inserts. Where there are no advisory locks, they wait here.
-- 4. The outer query tells what happened, and puts `lock_timeout` back. If neither was there, a row
--    is in the way that this statement does not see: one that was answered meanwhile, or one that
--    has expired and has to be taken over.
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
-- $11 lock bigint
-- $12 lock_timeout text
-- $13 claims text

with live as materialized (
  select fingerprint, status, header_names, header_values, body, created_at, expires_at, replay_until, born_at
    from idempotency.keys
   where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
     and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.statement_timestamp())
), setting as materialized (
  select pg_catalog.current_setting('lock_timeout') as lock_timeout
   where not exists (select 1 from live)
), gate as materialized (
  select pg_catalog.set_config('lock_timeout', $12, true) as bound,
         (select true from pg_catalog.pg_advisory_xact_lock($11)) as held
    from setting
), claim as (
  insert into idempotency.keys
         (scope, operation, key, fingerprint, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4,
         pg_catalog.now(), pg_catalog.now() operator(pg_catalog.+) $5, pg_catalog.now() operator(pg_catalog.+) $6,
         $7, $8, $9, $10
    from gate
   where gate.held
  on conflict (scope, operation, key) do nothing
  returning created_at, expires_at, replay_until
)
select claim.created_at is not null as ours, null::pg_catalog.text as place,
       case when setting.lock_timeout is not null
         then pg_catalog.set_config('lock_timeout', setting.lock_timeout, true) end,
       case when claim.created_at is not null and $13::pg_catalog.text is not null
         then pg_catalog.set_config('idempotency.claims', $13, true) end,
       live.fingerprint, live.status, live.header_names, live.header_values, live.body, live.born_at as born,
       coalesce(live.created_at, claim.created_at) as first_used,
       coalesce(live.expires_at, claim.expires_at) as expires,
       coalesce(live.replay_until, claim.replay_until) as replay_until,
       coalesce(live.replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended,
       case when claim.created_at is null and live.created_at is null then true end as free
  from (select 1) always
  left join claim on true
  left join setting on true
  left join live on true
