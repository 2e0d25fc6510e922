-- The limits that concern some graphs, locked until the claim ends: who claims next counts what
-- this one claims. In one order, so that two claims do not wait for each other.
SELECT
    graph, tenant, concurrency, rate, period, paused, begun, used,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM {schema}.limits
WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
ORDER BY graph, tenant
FOR UPDATE
