-- The source of a move, which has the shard: it belongs to this move from now on, and to no earlier.
UPDATE {schema}.placements
SET move = %(move)s, destination = %(to)s
WHERE shard = %(shard)s AND state = 'here'
RETURNING (SELECT version FROM {schema}.membership)
