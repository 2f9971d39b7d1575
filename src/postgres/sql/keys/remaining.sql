-- How many of an owner's rows are there, up to a limit?
--
-- $1 limit bigint
-- $2 scope text

select pg_catalog.count(*) as rows
  from (select 1 from idempotency.keys where scope operator(pg_catalog.=) $2 limit $1) remaining
