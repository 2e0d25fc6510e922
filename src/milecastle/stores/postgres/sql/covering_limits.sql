-- The limits that concern some graphs, and the time. Of one by key also what its values have used.
WITH present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), covering AS MATERIALIZED (
    SELECT * FROM {schema}.limits WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
)
SELECT
    graph, tenant, key, concurrency, rate, period, paused, begun, used, '', present.now
FROM covering, present
UNION ALL
SELECT
    known.graph, known.tenant, known.key, known.concurrency, known.rate, known.period,
    known.paused, meter.begun, meter.used, meter.limit_key, present.now
FROM covering AS known, present, LATERAL (
    SELECT begun, used, limit_key
    FROM {schema}.key_meters
    WHERE graph = known.graph AND tenant = known.tenant
        AND limit_key >= known.key || '=' AND limit_key < known.key || '>'
        AND until > present.now
) AS meter
WHERE known.key <> '' AND known.rate IS NOT NULL
