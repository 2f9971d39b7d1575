-- Removes a row that has expired from the way of the next claim, as the pruner would have done. If
-- another transaction is at the row, it waits for that one, at most so long.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 lock_timeout text

with setting as materialized (
  select pg_catalog.current_setting('lock_timeout') as lock_timeout
), gate as materialized (
  select pg_catalog.set_config('lock_timeout', $4, true) as bound from setting
), removed as (
  delete from idempotency.keys
   using gate
   where (scope, operation, key) operator(pg_catalog.=) ($1, $2, $3)
     and expires_at operator(pg_catalog.<=) pg_catalog.statement_timestamp()
  returning created_at
)
select removed.created_at is not null as removed, pg_catalog.set_config('lock_timeout', setting.lock_timeout, true)
  from setting
  left join removed on true
