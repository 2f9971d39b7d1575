-- Deletes a batch of expired rows. Rows that another transaction is pruning, or removing, are left
-- to it.
--
-- By their place in the table (`ctid`), which the lock keeps them at: to find a batch by its keys
-- leaves PostgreSQL the choice of how to join, and on a table that has just been emptied and filled
-- again it was seen to compare every row with every row of the batch.
--
-- From where the last batch ended: what that deleted stays in the index until a vacuum, and would
-- have to be passed over again each time.
--
-- $1 limit bigint
-- $2 from timestamptz

with pruned as (
  delete from idempotency.keys
   where ctid operator(pg_catalog.=) any (array(
     select ctid
       from idempotency.keys
      where expires_at operator(pg_catalog.<=) pg_catalog.now() and expires_at operator(pg_catalog.>=) $2
      order by expires_at
      limit $1
        for update skip locked
   ))
  returning expires_at
)
select pg_catalog.count(*) as rows, pg_catalog.max(expires_at) as last from pruned
