SELECT graph, tenant, concurrency, rate, period, paused
FROM {schema}.limits
ORDER BY graph, tenant
