DELETE FROM {schema}.limits WHERE graph = %(graph)s AND tenant = %(tenant)s RETURNING 1
