-- The limits that concern some graphs, and the time.
SELECT
    graph, tenant, key, concurrency, rate, period, paused, begun, used, '',
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM {schema}.limits
WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
