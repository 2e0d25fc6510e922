SELECT
    run_id, graph, fingerprint, mode, status, retry_count, previous_run_id, started_at, ended_at,
    input_digest, metadata, wake_at, owner, place, thread, number
FROM {schema}.runs
WHERE tenant = %(tenant)s AND status IS NOT NULL AND {here}
    AND (place, thread, number) < (%(place)s::bigint, %(thread)s, %(number)s::bigint)
ORDER BY place DESC, thread DESC, number DESC
LIMIT %(limit)s::bigint
