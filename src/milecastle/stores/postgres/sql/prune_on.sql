-- Goes on dropping what is below a cut that was passed.
WITH chosen AS (
    SELECT seq
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND seq > %(life)s::bigint
        AND seq < %(life)s::bigint + %(cut)s::bigint
    ORDER BY seq DESC
    LIMIT %(limit)s
), gone AS (
    DELETE FROM {schema}.entries AS entry
    USING chosen
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq = chosen.seq
    RETURNING 1
)
SELECT count(*) FROM gone
