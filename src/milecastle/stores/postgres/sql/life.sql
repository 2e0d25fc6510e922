-- Which life of a thread this is: how often it was deleted.
SELECT coalesce(max(seq), 0) >> 32
FROM {schema}.entries
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
