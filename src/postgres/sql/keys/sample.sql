-- What lies in a random sample of the table's pages, by operation. Column by column: that reads
-- nothing which lies elsewhere.
--
-- $1 percent double precision

select operation,
       pg_catalog.count(*) filter (where live and not replay_ended) as live,
       pg_catalog.count(*) filter (where live and replay_ended) as tombstones,
       pg_catalog.count(*) filter (where not live) as expired,
       coalesce(pg_catalog.sum(bytes), 0)::bigint as bytes,
       pg_catalog.min(created_at) as oldest
  from (
    select operation, created_at,
           28 operator(pg_catalog.+) pg_catalog.pg_column_size(scope)
           operator(pg_catalog.+) pg_catalog.pg_column_size(operation)
           operator(pg_catalog.+) pg_catalog.pg_column_size(key)
           operator(pg_catalog.+) pg_catalog.pg_column_size(fingerprint)
           operator(pg_catalog.+) coalesce(pg_catalog.pg_column_size(header_names), 0)
           operator(pg_catalog.+) coalesce(pg_catalog.pg_column_size(header_values), 0)
           operator(pg_catalog.+) coalesce(pg_catalog.pg_column_size(body), 0) operator(pg_catalog.+) 34 as bytes,
           expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.now() as live,
           body is null or coalesce(replay_until operator(pg_catalog.<=) pg_catalog.now(), false) as replay_ended
      from idempotency.keys tablesample pg_catalog.system (coalesce($1::double precision::real, 100))
  ) seen
 group by operation
