-- The last part of a move: writers under way are waited for, and new ones wait.
SELECT 1 FROM {schema}.placements
WHERE shard = %(shard)s AND state = 'here' AND move = %(move)s
FOR UPDATE
