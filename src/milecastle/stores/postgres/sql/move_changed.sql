-- The threads of a shard of which a row was written since a moment, by the ids of transactions: those
-- from the moment up to now. Older rows may have any id, because ids begin again after 2^32. Waiting
-- inputs change with their line.
WITH written AS (
    SELECT age(pg_snapshot_xmax(pg_current_snapshot())::xid) AS low, age(%(since)s::xid) AS high
)
SELECT tenant, thread FROM {schema}.threads AS known, written
WHERE shard = %(shard)s AND age(known.xmin) BETWEEN low AND high
UNION
SELECT tenant, thread FROM {schema}.entries AS known, written
WHERE shard = %(shard)s AND age(known.xmin) BETWEEN low AND high
UNION
SELECT tenant, thread FROM {schema}.runs AS known, written
WHERE shard = %(shard)s AND age(known.xmin) BETWEEN low AND high
UNION
SELECT tenant, thread FROM {schema}.results AS known, written
WHERE shard = %(shard)s AND age(known.xmin) BETWEEN low AND high
UNION
SELECT tenant, thread
FROM {schema}.tags AS known JOIN {schema}.threads AS line USING (tenant, thread), written
WHERE line.shard = %(shard)s AND age(known.xmin) BETWEEN low AND high
