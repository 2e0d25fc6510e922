-- The chains of several threads, as read.sql finds that of one; the last column is the number of the
-- thread among those that were asked for.
--
-- The arrays are given by subqueries, so that the planner does not know how many threads there are:
-- for a hundred it would compile the statement, for a hundred times as long as it takes to run it.
SELECT chain.*, asked.number
FROM unnest(
    (SELECT %(shards)s::smallint[]), (SELECT %(tenants)s::text[]), (SELECT %(threads)s::text[])
) WITH ORDINALITY AS asked (shard, tenant, thread, number), LATERAL ({chain}) AS chain
ORDER BY asked.number, 2 NULLS LAST
