SELECT thread, tag
FROM {schema}.tags
WHERE tenant = %(tenant)s AND thread = ANY(%(threads)s)
ORDER BY thread, tag
