EXISTS (
    -- After a wait for whoever moves the shard, its row is looked at again. A transaction that sees
    -- one moment (REPEATABLE READ) fails there instead, and is tried again.
    SELECT FROM {schema}.placements AS placed
    WHERE placed.shard = {shard} AND placed.state = 'here'
    FOR KEY SHARE
)
