-- How many claims the transaction holds.

select pg_catalog.current_setting('idempotency.claims', true) as claims
