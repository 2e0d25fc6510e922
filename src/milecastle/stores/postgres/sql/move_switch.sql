-- The one statement by which a shard moves.
WITH member AS (
    UPDATE {schema}.membership SET version = version + 1 RETURNING version
)
UPDATE {schema}.placements AS known
SET state = 'moved', leftovers = true, version = member.version
FROM member
WHERE shard = %(shard)s AND state = 'here' AND move = %(move)s
RETURNING 1
