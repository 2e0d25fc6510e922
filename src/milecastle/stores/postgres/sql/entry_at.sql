-- Whether a thread has an entry of this id in this place.
SELECT 1
FROM {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq = %(seq)s + (
        SELECT seq - (seq & 4294967295)
        FROM {schema}.entries
        WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        ORDER BY seq DESC
        LIMIT 1
    )
    AND entry.id = %(id)s AND {readable}
