UPDATE {schema}.placements
SET leftovers = false
WHERE shard = %(shard)s AND state = 'moved' AND move = %(move)s
