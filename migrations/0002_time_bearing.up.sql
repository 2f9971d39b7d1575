-- For keys that bear a time: when each was born, and how far back each operation remembers.
alter table idempotency.keys add column born_at timestamptz;

-- One row for each operation whose keys bear a time. Delete it when the operation goes back to keys without times, and at
-- no other occasion: without it, keys that were born before the next claim are refused.
create table idempotency.windows (
    operation     text collate "C" primary key,
    -- The longest window under which the operation was ever claimed, how long after its birth a key is kept, the largest
    -- step into the future that was ever allowed, and the largest step back of the clock; all in microseconds.
    window_us     bigint not null,
    keep_us       bigint not null,
    skew_us       bigint not null,
    margin_us     bigint not null,
    -- In which table: idempotency.timed_keys, or idempotency.keys.
    partitioned   boolean not null,
    -- Keys born until then are refused, since they may have been executed and forgotten before. Infinity: not known yet.
    refused_until timestamptz not null,
    -- Whether the operation was new here when that was noted, and not one that kept its keys in the other table.
    new           boolean not null,
    -- Keys born until then are judged by the window guarded_us, since they may have been forgotten under that. Infinity: a
    -- longer window has been noted just now.
    guard_since   timestamptz not null,
    guarded_us    bigint not null,
    noted_at      timestamptz not null
);
