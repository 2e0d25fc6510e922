SELECT shard FROM {schema}.placements WHERE state = 'here'
