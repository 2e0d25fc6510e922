UPDATE {schema}.limits
SET begun = %(begun)s::bigint, used = %(used)s::integer
WHERE graph = %(graph)s AND tenant = %(tenant)s
RETURNING 1
