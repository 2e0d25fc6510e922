-- How many entries the threads of each shard that is here have, or had before they were pruned: the
-- newest seq of each thread tells.
SELECT placed.shard, coalesce(sum(head.seq & 4294967295), 0)::bigint
FROM {schema}.placements AS placed
LEFT JOIN {schema}.threads AS line ON line.shard = placed.shard
LEFT JOIN LATERAL (
    SELECT entry.seq
    FROM {schema}.entries AS entry
    WHERE entry.shard = line.shard AND entry.tenant = line.tenant AND entry.thread = line.thread
    ORDER BY entry.seq DESC
    LIMIT 1
) AS head ON true
WHERE placed.state = 'here'
GROUP BY placed.shard
