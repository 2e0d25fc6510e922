-- Writes items of long-term memory. A version that is not the expected one divides by zero: then
-- the transaction has written nothing. Those of a batch are written only if this transaction has
-- written its last entry (memory_fence.sql).
--
-- Parameters by number and in binary: tenant 1; of each item path 2, key 3, value 4, whether it is
-- removed 5, subject 6, words with spaces between 7, vectors 8, model 9, ttl 10 and expected
-- version 11, both -1 for none; thread 12, seq 13.
WITH clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), given AS MATERIALIZED (
    SELECT each.*
    FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS each (
        path, key, value, removed, subject, words, vectors, model, ttl, expected
    )
    WHERE {fence}
), removed AS (
    DELETE FROM {schema}.memories AS old
    USING given
    WHERE given.removed AND old.tenant = $1 AND old.path = given.path AND old.key = given.key
    RETURNING old.path, old.key, CASE WHEN {live} THEN old.version ELSE 0 END AS version
), written AS (
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
    RETURNING path, key, version
)
SELECT 1 / (count(*) FILTER (WHERE expected <> coalesce(found.version, 0)) = 0)::integer
FROM given LEFT JOIN (
    SELECT path, key, version - 1 AS version FROM written
    UNION ALL
    SELECT path, key, version FROM removed
) AS found USING (path, key)
WHERE expected >= 0
