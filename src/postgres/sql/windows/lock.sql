-- Second step: every claim that did not see the first one began before now, so its key was made
-- before now and the allowed step into the future; and the clock may have been set back since, by
-- the margin. Keys born until then are judged by the shorter window; or refused, if the operation
-- has been used without times, or in the other table.
--
-- The clock is read once the row is locked.
--
-- $1 operation text

with locked as materialized (
  select new, skew_us operator(pg_catalog.+) margin_us as lead_us
    from idempotency.windows
   where operation operator(pg_catalog.=) $1
     for update
)
select new, lead_us, pg_catalog.clock_timestamp() as now from locked
