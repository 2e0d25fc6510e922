DELETE FROM {schema}.memories
WHERE tenant = %(tenant)s AND subject = %(subject)s
RETURNING 1
