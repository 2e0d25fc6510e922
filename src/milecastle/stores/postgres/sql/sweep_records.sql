-- What was beside the log of a buried thread. A separate statement, after the burial, so that
-- it sees what was written until then. A thread that was not buried keeps everything: it has entries,
-- or the index still names a run.
WITH buried AS (
    SELECT
    WHERE 0 = (
        SELECT coalesce(max(seq), 0) & 4294967295
        FROM {schema}.entries
        WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ) AND NOT EXISTS (
        SELECT FROM {schema}.threads
        WHERE tenant = %(tenant)s AND thread = %(thread)s AND run_id IS NOT NULL
    ) AND {placed}
), run AS (
    DELETE FROM {schema}.runs
    USING buried
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    RETURNING 1
), tag AS (
    DELETE FROM {schema}.tags
    USING buried
    WHERE tenant = %(tenant)s AND thread = %(thread)s
), result AS (
    DELETE FROM {schema}.results
    USING buried
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
)
SELECT count(*) FROM run
