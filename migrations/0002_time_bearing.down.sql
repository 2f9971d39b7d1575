-- Afterwards nobody knows any more since when an operation remembers.
drop table idempotency.windows;
alter table idempotency.keys drop column born_at;
