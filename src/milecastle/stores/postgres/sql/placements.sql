SELECT shard, state, move, destination FROM {schema}.placements
