-- The threads of a shard that were written since a moment, and whether their lines were. Entries are
-- only added, unless their thread is pruned or deleted; that, and everything else but results, writes
-- the line of the thread. So nobody need look at every entry.
--
-- Since a moment: by the ids of transactions, those from the moment up to now. Older rows may have
-- any id, because ids begin again after 2^32.
WITH written AS (
    SELECT age(pg_snapshot_xmax(pg_current_snapshot())::xid) AS low, age(%(since)s::xid) AS high
)
SELECT tenant, thread, age(line.xmin) BETWEEN low AND high
FROM {schema}.threads AS line, written
WHERE shard = %(shard)s AND (
    age(line.xmin) BETWEEN low AND high
    OR (
        SELECT age(newest.xmin) BETWEEN low AND high
        FROM {schema}.entries AS newest
        WHERE newest.shard = %(shard)s AND newest.tenant = line.tenant
            AND newest.thread = line.thread
        ORDER BY newest.seq DESC
        LIMIT 1
    )
    OR EXISTS (
        SELECT
        FROM {schema}.results AS result
        WHERE result.shard = %(shard)s AND result.tenant = line.tenant
            AND result.thread = line.thread AND age(result.xmin) BETWEEN low AND high
    )
)
