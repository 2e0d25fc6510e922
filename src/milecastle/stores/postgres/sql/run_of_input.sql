SELECT
    run_id, graph, fingerprint, mode, status, retry_count, previous_run_id, started_at, ended_at,
    input_digest, metadata, wake_at, owner
FROM {schema}.runs
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    AND input_digest = %(digest)s AND input_digest <> '' AND status IS NOT NULL AND {readable}
ORDER BY number DESC
LIMIT 1
