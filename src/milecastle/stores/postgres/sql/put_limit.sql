WITH extended AS (
    UPDATE {schema}.key_meters
    SET until = begun + %(period)s::bigint, is_full = used >= coalesce(%(rate)s::integer, 0)
    WHERE graph = %(graph)s AND tenant = %(tenant)s
        AND limit_key >= %(key)s::text || '=' AND limit_key < %(key)s::text || '>'
)
INSERT INTO {schema}.limits (graph, tenant, key, concurrency, rate, period, paused)
VALUES (
    %(graph)s, %(tenant)s, %(key)s, %(concurrency)s::integer, %(rate)s::integer,
    %(period)s::bigint, %(paused)s
)
ON CONFLICT (graph, tenant, key) DO UPDATE SET
    concurrency = excluded.concurrency,
    rate = excluded.rate,
    period = excluded.period,
    paused = excluded.paused
RETURNING 1
