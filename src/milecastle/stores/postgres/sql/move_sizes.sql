-- How many threads and entries each shard has that is here.
SELECT placed.shard, count(line.thread), coalesce(sum(line.fence & 4294967295), 0)::bigint
FROM {schema}.placements AS placed
LEFT JOIN {schema}.threads AS line ON line.shard = placed.shard
WHERE placed.state = 'here'
GROUP BY placed.shard
