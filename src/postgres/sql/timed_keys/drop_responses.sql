-- Likewise in the partitioned table, where a place says nothing without its partition: so by keys,
-- chosen once.
--
-- $1 limit bigint

with due as materialized (
  select scope, operation, key, born_at
    from idempotency.timed_keys
   where replay_until operator(pg_catalog.<=) pg_catalog.now()
   order by replay_until
   limit $1
     for update skip locked
)
update idempotency.timed_keys present
   set header_names = null, header_values = null, body = null, replay_until = null
  from due
 where (present.scope, present.operation, present.key, present.born_at)
       operator(pg_catalog.=) (due.scope, due.operation, due.key, due.born_at)
