-- How large a table is. A partitioned table has its pages in its leaves, and a plain one is no
-- tree. The size comes from the file system, so that no ANALYZE need have been there.
--
-- $1 table text

select coalesce(pg_catalog.sum(
         pg_catalog.pg_relation_size(relid) operator(pg_catalog./) pg_catalog.current_setting('block_size')::bigint
       ), 0)::double precision as pages,
       coalesce(pg_catalog.sum(pg_catalog.pg_table_size(relid)), 0)::bigint as table_bytes,
       coalesce(pg_catalog.sum(pg_catalog.pg_indexes_size(relid)), 0)::bigint as index_bytes
  from (
    select $1::pg_catalog.text::pg_catalog.regclass as relid
     union
    select relid from pg_catalog.pg_partition_tree($1::pg_catalog.text::pg_catalog.regclass)
  ) tables
