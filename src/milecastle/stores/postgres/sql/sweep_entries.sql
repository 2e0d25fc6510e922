-- Some of the entries of former lives, the oldest first; nothing reads them any more. Tombstones
-- stay: their places must not be taken by whoever still believes in an older head.
WITH head AS (
    SELECT seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), chosen AS (
    SELECT entry.seq
    FROM head, {schema}.entries AS entry
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq < head.life AND entry.kind < 3
    ORDER BY entry.seq
    LIMIT %(limit)s
), gone AS (
    DELETE FROM {schema}.entries AS entry
    USING chosen
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq = chosen.seq
    RETURNING 1
)
SELECT count(*) FROM gone
