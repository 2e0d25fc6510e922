SELECT tenant, thread
FROM {schema}.threads
WHERE worker = %(worker)s AND worker <> '' AND {here}
ORDER BY tenant, thread
