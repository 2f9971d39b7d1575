-- Is there such a table?
--
-- $1 table text

select pg_catalog.to_regclass($1) is not null as yes
