-- Whoever writes or deletes rows of a shard for a move holds its placement: a later move waits.
SELECT 1 FROM {schema}.placements
WHERE shard = %(shard)s AND state = %(state)s AND move = %(move)s
FOR SHARE
