-- Likewise for what was passed over: most of those who are at a row, such as a pruner, are done in
-- a moment.
--
-- $1 limit bigint
-- $2 scope text

with due as materialized (
  select operation, key from idempotency.keys
   where scope operator(pg_catalog.=) $2 limit $1 for update
)
delete from idempotency.keys present
 using due
 where (present.scope, present.operation, present.key) operator(pg_catalog.=) ($2, due.operation, due.key)
