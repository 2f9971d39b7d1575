-- Is this the transaction that claimed, by when that one began? Asks no table, so that it runs
-- where the transaction began.
--
-- $1 first_used timestamptz
-- $2 token bigint

select pg_catalog.now() operator(pg_catalog.=) $1 as own, $2::bigint as token
