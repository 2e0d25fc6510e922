-- The seq of a checkpoint whose id does not tell where it is: the thread is looked through.
SELECT entry.seq & 4294967295
FROM {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq > (
        SELECT seq - (seq & 4294967295)
        FROM {schema}.entries
        WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        ORDER BY seq DESC
        LIMIT 1
    )
    AND entry.id = %(id)s AND {readable}
ORDER BY entry.seq
LIMIT 1
