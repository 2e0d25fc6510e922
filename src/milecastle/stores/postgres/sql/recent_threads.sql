SELECT
    thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane, due_at, worker,
    rank, waiting_topics, limit_key, changed
FROM {schema}.threads
WHERE tenant = %(tenant)s AND run_id IS NOT NULL AND {here}
    AND (changed, thread) < (%(changed)s::bigint, %(thread)s)
ORDER BY changed DESC, thread DESC
LIMIT %(limit)s::bigint
