SELECT graph, tenant, key, concurrency, rate, period, paused
FROM {schema}.limits
ORDER BY graph, tenant, key
