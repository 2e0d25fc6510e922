WITH present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
)
SELECT
    lane, tenant,
    count(*) FILTER (WHERE worker = '' AND due_at <= now),
    count(*) FILTER (WHERE worker = '' AND due_at > now),
    count(*) FILTER (WHERE worker <> ''),
    coalesce(now - min(due_at) FILTER (WHERE worker = '' AND due_at <= now), 0)
FROM present, (
    SELECT lane, tenant, worker, due_at
    FROM {schema}.threads
    WHERE worker = '' AND due_at IS NOT NULL AND {here}
    UNION ALL
    SELECT lane, tenant, worker, due_at
    FROM {schema}.threads
    WHERE worker <> '' AND {here}
) AS waiting
WHERE lane <> ''
GROUP BY lane, tenant, now
ORDER BY lane, tenant
