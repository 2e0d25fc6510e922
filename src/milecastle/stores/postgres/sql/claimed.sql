SELECT tenant, thread
FROM {schema}.threads
WHERE worker = %(worker)s AND worker <> ''
ORDER BY tenant, thread
