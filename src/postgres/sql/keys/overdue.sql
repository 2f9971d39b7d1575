-- How many rows have expired and are still there, up to ten thousand, by the index.

select pg_catalog.count(*) as overdue, pg_catalog.min(created_at) as oldest
  from (
    select created_at from idempotency.keys
     where expires_at operator(pg_catalog.<=) pg_catalog.now() order by expires_at limit 10000
  ) overdue
