-- What changes whenever a shard leaves or comes, and how many shards are here.
SELECT
    (SELECT version FROM {schema}.membership),
    (SELECT count(*) FROM {schema}.placements WHERE state = 'here')
