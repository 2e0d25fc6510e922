INSERT INTO {schema}.limits (
    graph, tenant, key, concurrency, rate, period, paused, begun, used
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (graph, tenant, key) DO NOTHING
