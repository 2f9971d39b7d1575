-- Deletes a batch of an owner's rows. A row that another transaction holds is passed over, so that it holds up
-- no other.
--
-- Whoever it is may give it another place meanwhile: so by keys.
--
-- $1 limit bigint
-- $2 scope text

with due as materialized (
  select operation, key from idempotency.keys
   where scope operator(pg_catalog.=) $2 limit $1 for update skip locked
)
delete from idempotency.keys present
 using due
 where (present.scope, present.operation, present.key) operator(pg_catalog.=) ($2, due.operation, due.key)
