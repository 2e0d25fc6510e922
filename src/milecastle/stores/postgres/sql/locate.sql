SELECT entry.seq - entry.origin
FROM {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.id = %(id)s
    AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq > entry.origin
    AND entry.origin = (
        SELECT head.origin
        FROM {schema}.entries AS head
        WHERE head.shard = %(shard)s AND head.tenant = %(tenant)s AND head.thread = %(thread)s
        ORDER BY head.seq DESC
        LIMIT 1
    )
ORDER BY entry.seq
LIMIT 1
