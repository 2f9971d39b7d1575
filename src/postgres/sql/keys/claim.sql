-- Claims a key for one that does not wait, which is every first one: as little as there can be,
-- since every first call pays for it.
--
-- The insert runs only if the row's advisory lock is free, which its owner holds to the end: so
-- others learn that it is taken without an attempt at the row, which would wait. Where an engine
-- has no such locks, it is as if it were free. The insert alone decides who executes. If there is a
-- row, it does nothing, so a replay costs no transaction id. If that row has expired, it has to be
-- taken over by another statement, provided that the lock is `free`.
--
-- The row is looked for only if the insert did nothing: `offset 0` keeps PostgreSQL (16 and later)
-- from asking that last.
--
-- Where transactions are serializable, PostgreSQL takes note of every page of an index that a
-- transaction reads; two that claim unrelated keys on one page, and have read it, count as a
-- conflict with each other, and one of them fails. There the claim tells the row's place, by which
-- its response is written without reading the index.
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
-- $12 tell_place boolean

with claim as (
  insert into idempotency.keys
         (scope, operation, key, fingerprint, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4,
         pg_catalog.now(), pg_catalog.now() operator(pg_catalog.+) $5, pg_catalog.now() operator(pg_catalog.+) $6,
         $7, $8, $9, $10
   where pg_catalog.pg_try_advisory_xact_lock($11)
  on conflict (scope, operation, key) do nothing
  returning created_at, expires_at, replay_until, case when $12 then ctid::pg_catalog.text end as place
)
select claim.created_at is not null as ours, claim.place,
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
  left join claim on true
  left join (
    select *
      from idempotency.keys
     where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
       and not exists (select 1 from claim)
    offset 0
  ) present on true
