-- Takes a row's advisory lock, if no transaction executes the request. It is kept until the transaction
-- ends.
--
-- $1 lock bigint

select pg_catalog.pg_try_advisory_xact_lock($1) as free
