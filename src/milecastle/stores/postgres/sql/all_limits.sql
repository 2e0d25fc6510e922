SELECT graph, tenant, concurrency, rate, period, paused, begun, used FROM {schema}.limits
