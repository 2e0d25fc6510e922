INSERT INTO {schema}.limits (graph, tenant, concurrency, rate, period, paused, begun, used)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (graph, tenant) DO NOTHING
