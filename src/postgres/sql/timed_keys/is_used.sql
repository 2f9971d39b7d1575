-- Is there a row of the operation that has not expired?
--
-- $1 operation text

select exists (select 1 from idempotency.timed_keys where operation operator(pg_catalog.=) $1
                  and (expires_at is null or expires_at operator(pg_catalog.>) pg_catalog.statement_timestamp())) as used
