-- Forgets every key that was kept so. Dropping the table drops its partitions.
drop table idempotency.partitions;
drop table idempotency.timed_keys;
