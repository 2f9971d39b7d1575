-- Nobody else makes partitions, or chooses one to drop, meanwhile. The number means nothing.

select pg_catalog.pg_advisory_xact_lock(5830176230841920143)
