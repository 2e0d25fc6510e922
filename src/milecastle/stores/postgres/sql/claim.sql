-- Due threads, given to a worker: those that the part put in, which is one of take*.sql, has locked.
-- Rows are updated where they were locked, whatever the planner expects. The commit does not wait for
-- the disk: a claim that a crash of the server takes back is one that was lost, and the log refuses
-- whoever comes second.
WITH present AS (
    SELECT
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
        set_config('synchronous_commit', 'off', true)
), {locked}, {allowed}, taken AS (
    UPDATE {schema}.threads AS known
    SET worker = %(worker)s
    WHERE known.ctid = ANY (ARRAY(SELECT place FROM allowed))
    RETURNING known.*
)
SELECT
    tenant, thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane,
    due_at, worker, rank, waiting_topics, limit_key
FROM taken
ORDER BY due_at, tenant, thread
