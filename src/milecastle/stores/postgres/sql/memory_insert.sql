INSERT INTO {schema}.memories AS old (
    tenant, path, key, value, subject, words, vectors, model, ttl, expires_at, version,
    created_at, updated_at, thread, seq
)
SELECT
    $1, path, key, value, subject, string_to_array(words, ' '), vectors, model,
    nullif(ttl, -1), now + nullif(ttl, -1), 1, now, now, $12, $13
FROM given, clock
WHERE NOT removed
ORDER BY path, key
ON CONFLICT (tenant, path, key) DO UPDATE SET
    value = excluded.value,
    subject = excluded.subject,
    words = excluded.words,
    vectors = excluded.vectors,
    model = excluded.model,
    ttl = excluded.ttl,
    expires_at = excluded.expires_at,
    version = CASE
        WHEN old.expires_at <= excluded.updated_at THEN 1 ELSE old.version + 1
    END,
    created_at = CASE
        WHEN old.expires_at <= excluded.updated_at THEN excluded.created_at
        ELSE old.created_at
    END,
    updated_at = excluded.updated_at,
    thread = excluded.thread,
    seq = excluded.seq