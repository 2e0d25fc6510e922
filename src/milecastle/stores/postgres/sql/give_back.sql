UPDATE {schema}.threads
SET
    worker = '',
    due_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(delay)s::bigint
WHERE tenant = %(tenant)s AND thread = %(thread)s AND worker = %(worker)s AND worker <> ''
    AND {placed}
RETURNING 1
