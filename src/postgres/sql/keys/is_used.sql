-- Is there a row of the operation?
--
-- $1 operation text

select exists (select 1 from idempotency.keys where operation operator(pg_catalog.=) $1) as used
