SELECT
    thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane, due_at, worker,
    rank, waiting_topics, limit_key
FROM {schema}.threads
WHERE tenant = %(tenant)s AND run_id IS NOT NULL AND status = %(status)s AND {here}
    AND thread >= %(from)s AND thread <> %(after)s
ORDER BY thread
LIMIT %(limit)s::bigint
