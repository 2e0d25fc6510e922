-- The time first, then how many threads have a worker, by lane, tenant and limit key: not less than
-- have one at that time.
SELECT '', '', '', 0, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
UNION ALL
SELECT lane, tenant, limit_key, count(*), 0
FROM {schema}.threads
WHERE worker <> '' AND {here}
GROUP BY lane, tenant, limit_key
