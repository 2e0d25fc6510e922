SELECT
    (SELECT version FROM {schema}.membership),
    placed.state, placed.move, placed.destination, placed.version
FROM (SELECT %(shard)s::smallint AS shard) AS asked
LEFT JOIN {schema}.placements AS placed ON placed.shard = asked.shard
