-- The results that go with the head: of each task the one under the newest head.
SELECT DISTINCT ON (result.digest) result.given, result.task, result.payload
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
ORDER BY result.digest, result.seq DESC
