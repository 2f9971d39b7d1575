-- Drops a batch of responses that are not replayed any more; what is left is a tombstone.
--
-- $1 limit bigint

update idempotency.keys
   set header_names = null, header_values = null, body = null, replay_until = null
 where ctid operator(pg_catalog.=) any (array(
   select ctid
     from idempotency.keys
    where replay_until operator(pg_catalog.<=) pg_catalog.now()
    order by replay_until
    limit $1
      for update skip locked
 ))
