-- A claim is not committed without its response. While a row has no status, it refers to something that does not exist,
-- and PostgreSQL checks that at COMMIT: so work that runs COMMIT itself commits nothing. DEFERRABLE is what it rests on; an
-- engine that does not know it (CockroachDB) has to go without the constraint, and such a COMMIT is noticed afterwards.
create table idempotency.never (claim boolean primary key, check (false));

-- What an earlier release let be committed so: it was done, and its response is not known.
update idempotency.keys set status = 200 where status is null;

alter table idempotency.keys
    add column unanswered boolean generated always as (case when status is null then true end) stored,
    add constraint a_claim_is_committed_with_its_response
        foreign key (unanswered) references idempotency.never deferrable initially deferred;
