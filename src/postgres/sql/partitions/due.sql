-- Chooses a partition to drop: what no request can need any more, since no key in it is accepted, nor
-- kept. PostgreSQL detaches one at a time, so nothing is due while another pruner is dropping one; what
-- was begun a while ago and not ended comes first.

update idempotency.partitions
   set dropping_since = pg_catalog.clock_timestamp()
 where name operator(pg_catalog.=) (
   select name
     from idempotency.partitions
    where (upper
           operator(pg_catalog.+) ((select pg_catalog.max(keep_us) from idempotency.windows)
                operator(pg_catalog.*) interval '1 microsecond'))
          operator(pg_catalog.<=) pg_catalog.clock_timestamp()
      and not exists (
        select 1 from idempotency.partitions
         where (dropping_since operator(pg_catalog.+) interval '2 minutes')
               operator(pg_catalog.>) pg_catalog.clock_timestamp()
      )
    order by dropping_since nulls last, upper
    limit 1
 )
returning name
