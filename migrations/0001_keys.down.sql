-- Forgets every key: a retry that arrives afterwards executes again. The schema stays, since it also holds the
-- table of applied migrations.
drop table idempotency.keys;
