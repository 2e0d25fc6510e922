-- How many rows each thread of a shard has: where rows were deleted, source and destination differ.
-- And whether one was written since a moment, by the ids of transactions: those from the moment up to
-- now. Older rows may have any id, because ids begin again after 2^32. Waiting inputs and tags are
-- written together with the line of their thread.
WITH written AS (
    SELECT age(pg_snapshot_xmax(pg_current_snapshot())::xid) AS low, age(%(since)s::xid) AS high
)
SELECT
    tenant, thread, coalesce(bool_or(is_new), false),
    sum(lines), sum(entries), sum(runs), sum(results), sum(inputs), sum(tags)
FROM (
    SELECT
        tenant, thread, age(line.xmin) BETWEEN low AND high AS is_new,
        1 AS lines, 0 AS entries, 0 AS runs, 0 AS results, input.count AS inputs, tag.count AS tags
    FROM {schema}.threads AS line, written, LATERAL (
        SELECT count(*)
        FROM {schema}.inputs AS known
        WHERE known.tenant = line.tenant AND known.thread = line.thread
    ) AS input, LATERAL (
        SELECT count(*)
        FROM {schema}.tags AS known
        WHERE known.tenant = line.tenant AND known.thread = line.thread
    ) AS tag
    WHERE shard = %(shard)s
    UNION ALL
    SELECT
        tenant, thread, bool_or(age(known.xmin) BETWEEN low AND high), 0, count(*), 0, 0, 0, 0
    FROM {schema}.entries AS known, written WHERE shard = %(shard)s GROUP BY tenant, thread
    UNION ALL
    SELECT
        tenant, thread, bool_or(age(known.xmin) BETWEEN low AND high), 0, 0, count(*), 0, 0, 0
    FROM {schema}.runs AS known, written WHERE shard = %(shard)s GROUP BY tenant, thread
    UNION ALL
    SELECT
        tenant, thread, bool_or(age(known.xmin) BETWEEN low AND high), 0, 0, 0, count(*), 0, 0
    FROM {schema}.results AS known, written WHERE shard = %(shard)s GROUP BY tenant, thread
) AS counted
GROUP BY tenant, thread
