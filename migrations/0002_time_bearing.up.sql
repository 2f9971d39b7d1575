-- For keys that bear a time: when each was born, and how far back each operation remembers.
alter table idempotency.keys add column born_at timestamptz;

-- One row for each operation whose keys bear a time; a row is never deleted.
create table idempotency.windows (
    operation   text collate "C" primary key,
    -- The longest window under which the operation was ever claimed, how long after its birth a key is kept, and the
    -- largest step into the future that was ever allowed; all in microseconds.
    window_us   bigint not null,
    keep_us     bigint not null,
    skew_us     bigint not null,
    -- In which table: idempotency.timed_keys, or idempotency.keys.
    partitioned boolean not null,
    -- Keys born until then are judged by the window guarded_us, since they may have been forgotten under that; if it is
    -- less than nothing, they are refused. Infinity: a change is under way.
    guard_since timestamptz not null,
    guarded_us  bigint not null,
    noted_at    timestamptz not null
);
