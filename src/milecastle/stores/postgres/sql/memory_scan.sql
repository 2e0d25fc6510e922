SELECT
    path, key, subject, value, array_to_string(words, ' '), vectors, model, version,
    created_at, updated_at, ttl, expires_at, thread, seq
FROM {schema}.memories
WHERE tenant = %(tenant)s AND path < %(end)s AND (path, key) > (%(path)s, %(key)s) AND {live}
ORDER BY path, key
LIMIT %(limit)s
