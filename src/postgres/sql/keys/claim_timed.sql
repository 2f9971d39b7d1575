-- Claims a key that carries a timestamp: as a plain one, with a judgement before it.
--
-- 1. `judged` compares the key's time with the database's clock, once the operation's window is
--    noted; a key from before a longer window came into force is judged by the shorter one. A
--    snapshot that is older than the key may be older than the window that counts for it, so the
--    claim has to be made in a newer one.
-- 2. `claim` inserts what is timely, if the advisory lock is free, or when it comes free.
-- 3. `live` looks for a response if nothing was inserted: a key that is remembered is answered,
--    however old it is.
-- 4. The outer query judges again what was claimed, since it may have waited, and the row of an
--    earlier execution may have been pruned meanwhile. The clock runs on within a transaction,
--    unlike `now()`.
--
-- The row is kept as long as the longest window that was ever noted asks for.
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
-- $11 lock bigint
-- $12 lock_timeout text
-- $13 waits boolean
-- $14 window_us bigint
-- $15 keep_us bigint
-- $16 skew_us bigint
-- $17 partitioned boolean
-- $18 tell_place boolean
-- $19 claims text

with judged as materialized (
  select asked.accepted, noted.keep_us,
         case when (noted.window_us operator(pg_catalog.>=) $14
                    and noted.keep_us operator(pg_catalog.>=) $15
                    and noted.skew_us operator(pg_catalog.>=) $16
                    and noted.partitioned operator(pg_catalog.=) $17
                    and noted.refused_until operator(pg_catalog.<) 'infinity'
                    and noted.guard_since operator(pg_catalog.<) 'infinity') is not true
                then 'unregistered'
              when ($5 operator(pg_catalog.-) ($16 operator(pg_catalog.*) interval '1 microsecond'))
                   operator(pg_catalog.>) clock.now
                then 'from future'
              when $5 operator(pg_catalog.<) (clock.now operator(pg_catalog.-) asked.accepted)
                   or $5 operator(pg_catalog.<=) noted.refused_until
                then 'expired'
              when ($5 operator(pg_catalog.-) ($16 operator(pg_catalog.*) interval '1 microsecond'))
                   operator(pg_catalog.>) pg_catalog.now()
                   and pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'
                then 'stale'
              else 'timely'
         end as verdict
    from (select pg_catalog.clock_timestamp() as now) clock
    left join idempotency.windows noted on noted.operation operator(pg_catalog.=) $2
   cross join lateral (
     select (case when $5 operator(pg_catalog.<=) noted.guard_since then least($14, noted.guarded_us) else $14 end)
            operator(pg_catalog.*) interval '1 microsecond' as accepted
   ) asked
), setting as materialized (
  select pg_catalog.current_setting('lock_timeout') as lock_timeout
    from judged
   where verdict operator(pg_catalog.=) 'timely'
), gate as materialized (
  select pg_catalog.set_config('lock_timeout', $12, true) as bound,
         case when $13 then (select true from pg_catalog.pg_advisory_xact_lock($11))
              else pg_catalog.pg_try_advisory_xact_lock($11)
         end as free
    from setting
), claim as (
  insert into idempotency.keys
         (scope, operation, key, fingerprint, born_at, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4, $5,
         pg_catalog.now(),
         $5 operator(pg_catalog.+) (judged.keep_us operator(pg_catalog.*) interval '1 microsecond'),
         pg_catalog.now() operator(pg_catalog.+) $6,
         $7, $8, $9, $10
    from gate
   cross join judged
   where gate.free
  on conflict (scope, operation, key) do nothing
  returning created_at, expires_at, replay_until, case when $18 then ctid::pg_catalog.text end as place
), live as materialized (
  select fingerprint, status, header_names, header_values, body, created_at, expires_at, replay_until, born_at
    from idempotency.keys
   where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
     and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.clock_timestamp())
     and not exists (select 1 from claim)
)
select claim.created_at is not null as ours, claim.place,
       case when setting.lock_timeout is not null
         then pg_catalog.set_config('lock_timeout', setting.lock_timeout, true) end,
       case when claim.created_at is not null and $19::pg_catalog.text is not null
         then pg_catalog.set_config('idempotency.claims', $19, true) end,
       case when live.created_at is not null then null
            when claim.created_at is not null
                 and $5 operator(pg_catalog.<) (pg_catalog.clock_timestamp() operator(pg_catalog.-) judged.accepted)
              then 'expired'
            else judged.verdict
       end as verdict,
       judged.accepted, judged.keep_us,
       live.fingerprint, live.status, live.header_names, live.header_values, live.body, live.born_at as born,
       coalesce(live.created_at, claim.created_at) as first_used,
       coalesce(live.expires_at, claim.expires_at) as expires,
       coalesce(live.replay_until, claim.replay_until) as replay_until,
       coalesce(live.replay_until operator(pg_catalog.<=) pg_catalog.statement_timestamp(), false) as replay_ended,
       case when claim.created_at is null and live.created_at is null then gate.free end as free
  from (select 1) always
  left join claim on true
  left join judged on true
  left join setting on true
  left join gate on true
  left join live on true
