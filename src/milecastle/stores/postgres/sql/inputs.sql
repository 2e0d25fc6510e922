SELECT mark, run_id, payload
FROM {schema}.inputs
WHERE tenant = %(tenant)s AND thread = %(thread)s AND {readable}
ORDER BY number
LIMIT %(limit)s::bigint
