SELECT graph, tenant, key, concurrency, rate, period, paused, begun, used FROM {schema}.limits
