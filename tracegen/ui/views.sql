-- Views of a tracegen trace, for Perfetto's SQL: the same in `tracegen query` and in the Perfetto UI.
--
-- In the UI: open the trace, paste this file into the page "Query (SQL)", run it once (Ctrl+Enter),
-- then ask, for example
--
--     SELECT * FROM tracegen_rank;
--     SELECT * FROM tracegen_wait LIMIT 10;
--
-- Times are nanoseconds, as everywhere in Perfetto's SQL. A trace that has no tiles (a profiler's)
-- has only tracegen_track.

-- Every track with slices: how many, and how long one at least was open.
CREATE OR REPLACE PERFETTO VIEW tracegen_track AS
SELECT
  t.id AS track_id,
  COALESCE(process.name, parent.name) AS group_name,
  COALESCE(thread.name, t.name) AS track_name,
  COUNT(*) AS slices,
  SUM(IIF(s.depth = 0, s.dur, 0)) AS busy,
  MIN(s.ts) AS first_start,
  MAX(s.ts + s.dur) AS last_end
FROM slice AS s
JOIN track AS t ON t.id = s.track_id
LEFT JOIN thread_track ON thread_track.id = t.id
LEFT JOIN thread ON thread.utid = thread_track.utid
LEFT JOIN process_track ON process_track.id = t.id
LEFT JOIN process ON process.upid = COALESCE(thread.upid, process_track.upid)
LEFT JOIN track AS parent ON parent.id = t.parent_id
GROUP BY t.id;

-- Every tile: one action of one rank, or what it recomputes first (op RECOMPUTE). What else holds a rank (a SEND that blocks, a sum of gradients)
-- is none, and not busy time. JSON's arguments are args.*, native protobuf's debug.*.
CREATE OR REPLACE PERFETTO VIEW tracegen_tile AS
SELECT
  s.id,
  s.ts,
  s.dur,
  s.name,
  COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.rank'), EXTRACT_ARG(s.arg_set_id, 'debug.rank')) AS rank,
  COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.stage'), EXTRACT_ARG(s.arg_set_id, 'debug.stage')) AS stage,
  COALESCE(
    EXTRACT_ARG(s.arg_set_id, 'args.microbatch'), EXTRACT_ARG(s.arg_set_id, 'debug.microbatch')
  ) AS microbatch,
  COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.op'), EXTRACT_ARG(s.arg_set_id, 'debug.op')) AS op,
  COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.chain'), EXTRACT_ARG(s.arg_set_id, 'debug.chain')) AS chain,
  COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.phase'), EXTRACT_ARG(s.arg_set_id, 'debug.phase')) AS phase,
  COALESCE(
    EXTRACT_ARG(s.arg_set_id, 'args.waited_for'), EXTRACT_ARG(s.arg_set_id, 'debug.waited_for')
  ) AS waited_for,
  s.track_id
FROM slice AS s
JOIN tracegen_track AS t USING (track_id)
WHERE t.group_name = 'pipeline' AND t.track_name GLOB 'rank [0-9]*' AND s.depth = 0
  AND COALESCE(s.category, '') NOT IN ('message', 'gradients', 'stuck');

-- Every wait of a rank before a tile, longest first, with what the tile waited for.
CREATE OR REPLACE PERFETTO VIEW tracegen_wait AS
WITH follows AS (
  SELECT
    *,
    ts - COALESCE(
      LAG(ts + dur) OVER (PARTITION BY rank ORDER BY ts), (SELECT MIN(ts) FROM tracegen_tile)
    ) AS wait
  FROM tracegen_tile
)
SELECT rank, wait, ts - wait AS wait_start, name AS tile, waited_for, phase, id
FROM follows
WHERE wait > 0
ORDER BY wait DESC, rank, ts;

-- Every rank: tiles, busy, idle and bubble. Where a rank has a row of compute kernels, busy is when
-- one of them ran; otherwise when a tile did.
CREATE OR REPLACE PERFETTO VIEW tracegen_rank AS
WITH
  tile AS (
    SELECT rank, COUNT(*) AS tiles, SUM(dur) AS busy, MIN(ts) AS first_start,
      MAX(ts + dur) AS last_end
    FROM tracegen_tile
    GROUP BY rank
  ),
  kernel AS (
    SELECT CAST(SUBSTR(track_name, 6) AS INT) AS rank, busy
    FROM tracegen_track
    WHERE group_name = 'kernels' AND track_name GLOB 'rank [0-9]* compute'
  ),
  step AS (
    SELECT MAX(last_end) - MIN(first_start) AS makespan
    FROM tracegen_track
    WHERE group_name IN ('pipeline', 'kernels') AND track_name GLOB 'rank [0-9]*'
  )
SELECT
  rank,
  tiles,
  COALESCE(kernel.busy, tile.busy) AS busy,
  makespan - COALESCE(kernel.busy, tile.busy) AS idle,
  1 - 1.0 * COALESCE(kernel.busy, tile.busy) / makespan AS bubble,
  last_end - first_start AS span,
  makespan
FROM tile
JOIN step
LEFT JOIN kernel USING (rank)
ORDER BY rank;

-- The whole step: makespan and the three figures for the bubble.
--   ratio      idle part of all ranks' time        1 - sum(busy) / (ranks * makespan)
--   overhead   idle time per busy time             sum(idle) / sum(busy)
--   span_rate  idle part of the longest rank's own span, first start to last end
CREATE OR REPLACE PERFETTO VIEW tracegen_bubble AS
WITH each AS MATERIALIZED (SELECT * FROM tracegen_rank)
SELECT
  COUNT(*) AS ranks,
  MAX(makespan) AS makespan,
  1 - 1.0 * SUM(busy) / SUM(makespan) AS ratio,
  1.0 * SUM(idle) / SUM(busy) AS overhead,
  (SELECT 1 - 1.0 * busy / span FROM each ORDER BY span DESC, rank LIMIT 1) AS span_rate
FROM each
HAVING COUNT(*) > 0;
