-- Count claims against rates by key, each value in its period or in one that begins.
INSERT INTO {schema}.key_meters AS known (graph, tenant, limit_key, begun, used, until, is_full)
SELECT graph, tenant, limit_key, begun, count, until, is_full
FROM unnest(
    %(graphs)s::text[], %(tenants)s::text[], %(limit_keys)s::text[], %(begun)s::bigint[],
    %(counts)s::integer[], %(until)s::bigint[], %(full)s::boolean[]
) AS charged (graph, tenant, limit_key, begun, count, until, is_full)
ON CONFLICT (graph, tenant, limit_key) DO UPDATE SET
    used = excluded.used + CASE WHEN known.begun = excluded.begun THEN known.used ELSE 0 END,
    begun = excluded.begun,
    until = excluded.until,
    is_full = excluded.is_full
RETURNING 1
