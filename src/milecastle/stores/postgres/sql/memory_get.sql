SELECT
    path, key, subject, value, array_to_string(words, ' '), vectors, model, version,
    created_at, updated_at, ttl, expires_at, thread, seq
FROM {schema}.memories
WHERE tenant = %(tenant)s AND path = %(path)s AND key = %(key)s AND {live}
