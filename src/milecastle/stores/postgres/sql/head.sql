-- The head's seq and roll_seq.
SELECT seq - origin, roll_seq
FROM {schema}.entries
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
ORDER BY seq DESC
LIMIT 1
