SELECT
    run_id, graph, fingerprint, mode, status, retry_count, previous_run_id, started_at, ended_at,
    input_digest, metadata, wake_at
FROM {schema}.runs
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    AND status IS NOT NULL
ORDER BY started_at DESC, run_id DESC
LIMIT %(limit)s::bigint
