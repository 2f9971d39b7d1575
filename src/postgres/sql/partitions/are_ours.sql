-- Is the partitioned table there, and is it this role's to change? If not, another role has to
-- prune it.

select exists (
  select 1
    from pg_catalog.pg_class
   where oid operator(pg_catalog.=) pg_catalog.to_regclass('idempotency.timed_keys')
     and pg_catalog.pg_has_role(relowner, 'usage')
) as yes
