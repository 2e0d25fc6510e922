-- The head's seq, its roll_seq and its id.
SELECT seq & 4294967295, roll_seq, id
FROM {schema}.entries
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s AND {readable}
ORDER BY seq DESC
LIMIT 1
