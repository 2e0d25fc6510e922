-- Results of former lives: those that were on their way when the thread was buried.
WITH gone AS (
    DELETE FROM {schema}.results AS result
    USING (
        SELECT seq - (seq & 4294967295) AS life
        FROM {schema}.entries
        WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        ORDER BY seq DESC
        LIMIT 1
    ) AS head
    WHERE result.shard = %(shard)s AND result.tenant = %(tenant)s AND result.thread = %(thread)s
        AND result.seq < head.life AND {placed}
    RETURNING 1
)
UPDATE {schema}.threads -- see move_changed.sql
SET fence = fence
WHERE tenant = %(tenant)s AND thread = %(thread)s AND EXISTS (SELECT FROM gone)
RETURNING 1
