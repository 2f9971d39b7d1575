-- Is a partition still attached, and has a pruner begun to detach it? No row: it is not there.
--
-- $1 table text

select inherits.inhdetachpending as half_detached
  from pg_catalog.pg_class class
  left join pg_catalog.pg_inherits inherits on inherits.inhrelid operator(pg_catalog.=) class.oid
 where class.oid operator(pg_catalog.=) pg_catalog.to_regclass($1)
