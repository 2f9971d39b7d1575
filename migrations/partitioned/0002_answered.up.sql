-- As 0003_answered one folder up, for the partitioned table.
update idempotency.timed_keys set status = 200 where status is null;

alter table idempotency.timed_keys
    add column unanswered boolean generated always as (case when status is null then true end) stored,
    add constraint a_claim_is_committed_with_its_response
        foreign key (unanswered) references idempotency.never deferrable initially deferred;
