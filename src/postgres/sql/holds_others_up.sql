-- Does another connection of the same process, as far as the server can tell, wait for a lock of
-- this transaction's?
--
-- Those who wait for the same key wait for an advisory lock, and do not count. PostgreSQL shows
-- only to a member of the same role what a session waits for.

select exists (
  select 1
    from pg_catalog.pg_stat_activity other
    join pg_catalog.pg_stat_activity own on own.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid()
   where other.wait_event_type operator(pg_catalog.=) 'Lock'
     and other.wait_event operator(pg_catalog.<>) 'advisory'
     and other.usesysid operator(pg_catalog.=) own.usesysid
     and (other.client_addr operator(pg_catalog.=) own.client_addr
          or (other.client_addr is null and own.client_addr is null))
     and own.pid operator(pg_catalog.=) any (pg_catalog.pg_blocking_pids(other.pid))
) as yes
