-- Keys born until then are refused, unless that is known already.
--
-- $1 operation text
-- $2 until timestamptz

update idempotency.windows
   set refused_until = $2
 where operation operator(pg_catalog.=) $1 and refused_until operator(pg_catalog.=) 'infinity'
