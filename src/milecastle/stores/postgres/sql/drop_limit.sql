DELETE FROM {schema}.limits
WHERE graph = %(graph)s AND tenant = %(tenant)s AND key = %(key)s
RETURNING 1
