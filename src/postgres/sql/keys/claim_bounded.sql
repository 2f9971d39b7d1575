-- Likewise for transactions of the caller's, on which no timer can be set: with a bound for the
-- wait that there may be nevertheless, behind the pruner or an operator, and counting the claims
-- that the transaction holds.
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

with setting as materialized (
  select pg_catalog.current_setting('lock_timeout') as lock_timeout
), gate as materialized (
  select pg_catalog.set_config('lock_timeout', $12, true) as bound
    from setting
   where pg_catalog.pg_try_advisory_xact_lock($11)
), claim as (
  insert into idempotency.keys
         (scope, operation, key, fingerprint, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4,
         pg_catalog.now(), pg_catalog.now() operator(pg_catalog.+) $5, pg_catalog.now() operator(pg_catalog.+) $6,
         $7, $8, $9, $10
    from gate
  on conflict (scope, operation, key) do nothing
  returning created_at, expires_at, replay_until
)
select claim.created_at is not null as ours, null::pg_catalog.text as place,
       pg_catalog.set_config('lock_timeout', setting.lock_timeout, true),
       case when claim.created_at is not null then pg_catalog.set_config('idempotency.claims', $13, true) end,
       present.fingerprint, present.status, present.header_names, present.header_values, present.body,
       present.born_at as born,
       coalesce(claim.created_at, present.created_at) as first_used,
       case when claim.created_at is null then present.expires_at else claim.expires_at end as expires,
       case when claim.created_at is null then present.replay_until else claim.replay_until end as replay_until,
       coalesce(present.replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended,
       case when claim.created_at is null
                 and present.expires_at operator(pg_catalog.<=) pg_catalog.statement_timestamp()
         then pg_catalog.pg_try_advisory_xact_lock($11) end as free
  from (select 1) always
 cross join setting
  left join claim on true
  left join (
    select *
      from idempotency.keys
     where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
       and not exists (select 1 from claim)
    offset 0
  ) present on true
