-- The key that goes first, by the index: it is the oldest, unless windows differ.

select created_at as oldest
  from idempotency.keys
 where expires_at is not null
 order by expires_at
 limit 1
