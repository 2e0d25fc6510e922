SELECT shard, state, move, destination, version FROM {schema}.placements
