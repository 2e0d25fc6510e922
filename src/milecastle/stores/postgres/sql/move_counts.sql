-- How many rows each thread of a shard has: where rows were deleted, source and destination differ.
SELECT tenant, thread, sum(lines), sum(entries), sum(runs), sum(results), sum(inputs), sum(tags)
FROM (
    SELECT tenant, thread, 1 AS lines, 0 AS entries, 0 AS runs, 0 AS results,
        (
            SELECT count(*) FROM {schema}.inputs AS input
            WHERE input.tenant = line.tenant AND input.thread = line.thread
        ) AS inputs,
        (
            SELECT count(*) FROM {schema}.tags AS tag
            WHERE tag.tenant = line.tenant AND tag.thread = line.thread
        ) AS tags
    FROM {schema}.threads AS line
    WHERE shard = %(shard)s
    UNION ALL
    SELECT tenant, thread, 0, count(*), 0, 0, 0, 0
    FROM {schema}.entries WHERE shard = %(shard)s GROUP BY tenant, thread
    UNION ALL
    SELECT tenant, thread, 0, 0, count(*), 0, 0, 0
    FROM {schema}.runs WHERE shard = %(shard)s GROUP BY tenant, thread
    UNION ALL
    SELECT tenant, thread, 0, 0, 0, count(*), 0, 0
    FROM {schema}.results WHERE shard = %(shard)s GROUP BY tenant, thread
) AS counted
GROUP BY tenant, thread
