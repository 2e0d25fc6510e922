-- A move that was given up: nothing is written to its destination any more.
UPDATE {schema}.placements
SET state = 'moved', destination = NULL
WHERE shard = %(shard)s AND state = 'arriving' AND move = %(move)s
RETURNING 1
