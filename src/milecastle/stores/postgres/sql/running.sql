SELECT lane, tenant, count(*)
FROM {schema}.threads
WHERE worker <> '' AND {here}
GROUP BY lane, tenant
