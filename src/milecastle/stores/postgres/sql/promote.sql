-- A shard whose source says that it has moved here, by this move.
WITH promoted AS (
    UPDATE {schema}.placements
    SET state = 'here', leftovers = false
    WHERE shard = %(shard)s AND state = 'arriving' AND move = %(move)s
    RETURNING version
)
UPDATE {schema}.membership AS member
SET version = greatest(member.version + 1, promoted.version)
FROM promoted
RETURNING 1
