EXISTS (
    SELECT FROM {schema}.placements AS placed
    WHERE placed.shard = {shard} AND placed.state = 'here'
)
