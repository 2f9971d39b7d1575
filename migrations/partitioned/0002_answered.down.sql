alter table idempotency.timed_keys drop column unanswered;
