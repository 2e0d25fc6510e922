-- Count claims against rates, in the period in which they were made or in one that began since. A
-- period that begins in the future is one of a clock that was set back.
UPDATE {schema}.limits AS known
SET
    begun = CASE WHEN known.begun BETWEEN charged.begun AND present.now
        THEN known.begun ELSE charged.begun END,
    used = charged.count + CASE WHEN known.begun BETWEEN charged.begun AND present.now
        THEN known.used ELSE 0 END
FROM unnest(
    %(graphs)s::text[], %(tenants)s::text[], %(begun)s::bigint[], %(counts)s::integer[]
) AS charged (graph, tenant, begun, count), (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
) AS present
WHERE known.graph = charged.graph AND known.tenant = charged.tenant AND known.key = ''
RETURNING 1
