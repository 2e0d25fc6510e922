SELECT lane, tenant, count(*)
FROM {schema}.threads
WHERE worker <> ''
GROUP BY lane, tenant
