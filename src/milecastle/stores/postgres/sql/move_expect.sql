-- The destination of a move, if it says what it said before: it expects the shard by this move.
INSERT INTO {schema}.placements AS known (shard, state, move, leftovers, version)
VALUES (%(shard)s, 'arriving', %(move)s, true, %(version)s)
ON CONFLICT (shard) DO UPDATE SET
    state = 'arriving', move = excluded.move, leftovers = true, version = excluded.version,
    destination = NULL
WHERE known.state <> 'here' AND known.state = %(state)s::text
    AND known.move IS NOT DISTINCT FROM %(before)s::bigint
RETURNING 1
