-- First of two steps by which an operation's window is noted: from when this is committed, keys are
-- kept as the longer window asks for. What a claim that did not see it yet keeps, it keeps for
-- shorter. Until the second step no request claims.
--
-- The guard that stood before still counts, unless all that it guards is too old for its own
-- window.
--
-- $1 operation text
-- $2 window_us bigint
-- $3 keep_us bigint
-- $4 skew_us bigint
-- $5 partitioned boolean

insert into idempotency.windows as present
       (operation, window_us, keep_us, skew_us, margin_us, partitioned, refused_until, new, guard_since, guarded_us,
        noted_at)
values ($1, $2, $3, $4, $3::bigint operator(pg_catalog.-) $2::bigint, $5, 'infinity', true, '-infinity', $2,
        pg_catalog.clock_timestamp())
on conflict (operation) do update
   set window_us = greatest(present.window_us, excluded.window_us),
       keep_us = greatest(present.keep_us, excluded.keep_us),
       skew_us = greatest(present.skew_us, excluded.skew_us),
       margin_us = greatest(present.margin_us, excluded.margin_us),
       partitioned = excluded.partitioned,
       refused_until = case
         when present.partitioned operator(pg_catalog.<>) excluded.partitioned then excluded.refused_until
         else present.refused_until
       end,
       new = present.new and present.partitioned operator(pg_catalog.=) excluded.partitioned,
       guarded_us = case
         when case
                when pg_catalog.isfinite(present.guard_since)
                  then (excluded.noted_at operator(pg_catalog.-) present.guard_since)
                       operator(pg_catalog.>) (present.keep_us operator(pg_catalog.*) interval '1 microsecond')
                else present.guard_since operator(pg_catalog.<) excluded.noted_at
              end
           then present.window_us
         else least(present.guarded_us, present.window_us)
       end,
       guard_since = 'infinity',
       noted_at = excluded.noted_at
 where present.window_us operator(pg_catalog.<) excluded.window_us
    or present.keep_us operator(pg_catalog.<) excluded.keep_us
    or present.skew_us operator(pg_catalog.<) excluded.skew_us
    or present.partitioned operator(pg_catalog.<>) excluded.partitioned
