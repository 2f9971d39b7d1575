-- Is the second step still to be made, and is the operation new here?
--
-- $1 operation text

select new and refused_until operator(pg_catalog.=) 'infinity' as new
  from idempotency.windows
 where operation operator(pg_catalog.=) $1
   and (refused_until operator(pg_catalog.=) 'infinity' or guard_since operator(pg_catalog.=) 'infinity')
