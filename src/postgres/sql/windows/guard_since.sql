-- Keys born until then are judged by the shorter window, unless that is known already.
--
-- $1 operation text
-- $2 since timestamptz

update idempotency.windows
   set guard_since = $2
 where operation operator(pg_catalog.=) $1 and guard_since operator(pg_catalog.=) 'infinity'
