-- By choice, and after the files one folder up: keys that hold their time are kept in partitions by that time.
-- A key's time decides its partition, so that the primary key keeps it unique although each partition has its own.
create table idempotency.timed_keys (
    scope         text     collate "C" not null,
    operation     text     collate "C" not null,
    key           text     collate "C" not null,
    fingerprint   bytea    not null,
    status        smallint,
    header_names  text[],
    header_values bytea[],
    body          bytea,
    created_at    timestamptz not null default now(),
    replay_until  timestamptz,
    expires_at    timestamptz not null,
    -- When the key was born.
    born_at       timestamptz not null,
    primary key (scope, operation, key, born_at)
) partition by range (born_at);

-- No index on expires_at: a partition is dropped when all that it may hold has expired.
create index timed_keys_replay_until on idempotency.timed_keys (replay_until) where replay_until is not null;

-- The partitions that there are, for the pruner.
create table idempotency.partitions (
    name  text primary key,
    lower timestamptz not null,
    upper timestamptz not null,
    -- Since when somebody has been dropping it.
    dropping_since timestamptz
);
