, seen AS MATERIALIZED (
    SELECT runs, coalesce((
        SELECT run_id
        FROM {schema}.runs
        WHERE shard = $1 AND tenant = $2 AND thread = $3 AND input_digest = $12
            AND input_digest <> '' AND status IS NOT NULL
        ORDER BY number DESC
        LIMIT 1
    ), $13) <> $13 AS is_known
    FROM {schema}.threads
    WHERE tenant = $2 AND thread = $3
)