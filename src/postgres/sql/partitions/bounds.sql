-- The partitions that there are.

select lower, upper from idempotency.partitions order by lower
