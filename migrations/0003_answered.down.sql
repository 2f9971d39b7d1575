-- Undo the partitioned table's migrations first, where there is one: it refers to idempotency.never as well.
alter table idempotency.keys drop column unanswered;
drop table idempotency.never;
