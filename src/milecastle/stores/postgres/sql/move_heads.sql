-- How far each thread of a shard is: its newest entry and how many results it has, and whether its
-- line or a result was written since a moment. Entries are only added, unless their thread is pruned
-- or deleted; that, and everything else, writes the line. So nobody need look at every entry.
--
-- Since a moment: by the ids of transactions, those from the moment up to now. Older rows may have
-- any id, because ids begin again after 2^32.
WITH written AS (
    SELECT age(pg_snapshot_xmax(pg_current_snapshot())::xid) AS low, age(%(since)s::xid) AS high
), result AS (
    SELECT tenant, thread, count(*) AS count, bool_or(age(known.xmin) BETWEEN low AND high) AS is_new
    FROM {schema}.results AS known, written
    WHERE shard = %(shard)s
    GROUP BY tenant, thread
)
SELECT
    tenant, thread, age(line.xmin) BETWEEN low AND high OR coalesce(result.is_new, false),
    coalesce(result.count, 0), (
        SELECT max(seq)
        FROM {schema}.entries AS known
        WHERE known.shard = %(shard)s AND known.tenant = line.tenant AND known.thread = line.thread
    )
FROM {schema}.threads AS line CROSS JOIN written LEFT JOIN result USING (tenant, thread)
WHERE shard = %(shard)s
