-- LATERAL, with its limit, keeps the planner from walking the index of threads beside that of tags.
SELECT
    line.thread, line.status, line.run_id, line.graph, line.started_at, line.ended_at,
    line.wake_at, line.questions, line.lane, line.due_at, line.worker, line.rank,
    line.waiting_topics, line.limit_key
FROM {schema}.tags AS tag, LATERAL (
    SELECT
        thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane, due_at,
        worker, rank, waiting_topics, limit_key
    FROM {schema}.threads AS known
    WHERE known.tenant = tag.tenant AND known.thread = tag.thread AND known.run_id IS NOT NULL
        AND {here}
    LIMIT 1
) AS line
WHERE tag.tenant = %(tenant)s AND tag.tag = %(tag)s
    AND tag.thread >= %(from)s AND tag.thread <> %(after)s
ORDER BY tag.thread
LIMIT %(limit)s::bigint
