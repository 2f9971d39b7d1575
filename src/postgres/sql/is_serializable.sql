-- Are transactions serializable unless they say otherwise, and on what server?

select pg_catalog.current_setting('default_transaction_isolation') as isolation,
       pg_catalog.version() as version
