-- What the partitions have to cover: the longest window and the largest step into the future of all
-- operations that keep their keys so. Null if there is none.

select pg_catalog.clock_timestamp() as now,
       pg_catalog.max(window_us) as window_us, pg_catalog.max(skew_us) as skew_us
  from idempotency.windows
 where partitioned
