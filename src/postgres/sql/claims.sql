-- How many claims the transaction holds, and how long ago it began.

select pg_catalog.current_setting('idempotency.claims', true) as claims,
       pg_catalog.statement_timestamp() operator(pg_catalog.-) pg_catalog.now() as age
