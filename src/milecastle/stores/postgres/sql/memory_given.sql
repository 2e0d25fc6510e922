clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), given AS MATERIALIZED (
    SELECT each.*
    FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS each (
        path, key, value, removed, subject, words, vectors, model, ttl, expected
    )
    WHERE {fence}
)