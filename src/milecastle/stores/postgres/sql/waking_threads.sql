SELECT
    thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane, due_at, worker,
    rank, waiting_topics, limit_key
FROM {schema}.threads
WHERE tenant = %(tenant)s AND wake_at IS NOT NULL AND {here}
    AND wake_at <= %(until)s::bigint
    AND (wake_at, thread) > (%(wake_at)s::bigint, %(thread)s)
ORDER BY wake_at, thread
LIMIT %(limit)s::bigint
