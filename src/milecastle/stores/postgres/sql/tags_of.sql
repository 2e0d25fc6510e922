SELECT thread, tag
FROM {schema}.tags AS known
WHERE tenant = %(tenant)s AND thread = ANY(%(threads)s) AND {tagged}
ORDER BY thread, tag
