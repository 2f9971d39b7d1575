-- Writes the response into the row that this transaction has claimed: the last statement before the
-- commit. It gives the token back, by which its result is told from that of another statement.
--
-- `created_at` is when the claiming transaction began, and so is `now()` as long as that
-- transaction lasts. A row that this does not find was claimed by another transaction: the work has
-- ended its own.
--
-- $1 scope text
-- $2 operation text
-- $3 key text
-- $4 status smallint
-- $5 header_names text[]
-- $6 header_values bytea[]
-- $7 body bytea
-- $8 born timestamptz
-- $9 token bigint

update idempotency.timed_keys
   set status = $4, header_names = $5, header_values = $6, body = $7
 where (scope, operation, key, born_at) operator(pg_catalog.=) ($1, $2, $3, $8)
   and status is null and created_at operator(pg_catalog.=) pg_catalog.now()
returning $9::bigint as token
