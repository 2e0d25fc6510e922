-- The chains of several threads, as read.sql finds that of one; the last column is the number of the
-- thread among those that were asked for.
SELECT chain.*, asked.number
FROM unnest(%(shards)s::smallint[], %(tenants)s::text[], %(threads)s::text[]) WITH ORDINALITY
    AS asked (shard, tenant, thread, number), LATERAL ({chain}) AS chain
ORDER BY asked.number, 2 NULLS LAST
