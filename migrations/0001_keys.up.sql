-- What every key was answered with. One row for each (scope, operation, key).
--
-- A row without a status exists only inside the transaction that executes the request: nobody else can see it, but
-- its primary key makes duplicates wait. So a reader finds an answer or nothing.
create schema if not exists idempotency;

create table idempotency.keys (
    -- Who owns the key; '' is the global scope. First, so that a sharded PostgreSQL can distribute by it.
    scope         text     collate "C" not null,
    -- What is being done, such as 'charge.create' or 'POST /charges'.
    operation     text     collate "C" not null,
    -- The client's key, unquoted.
    key           text     collate "C" not null,
    -- A version byte and the SHA-256 of what was asked.
    fingerprint   bytea    not null,
    -- The answer: header fields are ordered pairs, so that repeats and bytes beyond ASCII survive. A row with a status
    -- and nothing else is a tombstone: it was answered, and the answer is not kept.
    status        smallint,
    header_names  text[],
    header_values bytea[],
    body          bytea,
    created_at    timestamptz not null default now(),
    -- From then on the answer counts as not kept, whether it is still there or not. Null: as long as the row.
    replay_until  timestamptz,
    -- From then on the row counts as absent, whether it is still there or not. Null: never.
    expires_at    timestamptz,
    primary key (scope, operation, key)
);

-- For the pruner, which takes the oldest first.
create index keys_expires_at on idempotency.keys (expires_at) where expires_at is not null;
create index keys_replay_until on idempotency.keys (replay_until) where replay_until is not null;
