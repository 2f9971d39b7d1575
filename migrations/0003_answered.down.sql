alter table idempotency.keys drop column unanswered;
drop table idempotency.never;
