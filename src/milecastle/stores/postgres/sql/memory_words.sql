SELECT
    path, key, subject, value, array_to_string(words, ' '), vectors, model, version,
    created_at, updated_at, ttl, expires_at, thread, seq
FROM {schema}.memories
WHERE tenant = %(tenant)s AND path >= %(under)s AND path < %(end)s AND words && %(words)s::text[]
    AND {live}
ORDER BY
    cardinality(ARRAY(SELECT unnest(words) INTERSECT SELECT unnest(%(words)s::text[]))) DESC,
    path, key
LIMIT %(limit)s
