INSERT INTO {schema}.limits (graph, tenant, concurrency, rate, period, paused)
VALUES (
    %(graph)s, %(tenant)s, %(concurrency)s::integer, %(rate)s::integer, %(period)s::bigint,
    %(paused)s
)
ON CONFLICT (graph, tenant) DO UPDATE SET
    concurrency = excluded.concurrency,
    rate = excluded.rate,
    period = excluded.period,
    paused = excluded.paused
RETURNING 1
