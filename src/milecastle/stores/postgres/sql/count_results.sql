-- How many of the results that go with the head are of a task or its items.
SELECT count(result.seq)
FROM (
    SELECT seq, held
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND {readable}
    ORDER BY seq DESC
    LIMIT 1
) AS head, {schema}.results AS result
WHERE result.shard = %(shard)s AND result.tenant = %(tenant)s AND result.thread = %(thread)s
    AND head.seq & 4294967295 > 0
    AND result.seq >= head.seq - head.held
    AND (result.task = %(task)s OR (result.task >= %(first)s AND result.task < %(last)s))
