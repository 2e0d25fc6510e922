-- So many due threads of each group, given to a worker: those that were due first, of which nobody
-- else is writing. Nobody waits here, and a worker that meets another takes what comes behind.
-- Rows are updated where they were locked, and the last limit repeats the first: so no plan depends
-- on how many the planner expects, and none looks so expensive that the server would compile it.
-- The commit does not wait for the disk: a claim that a crash of the server takes back is one that
-- was lost, and the log refuses whoever comes second.
WITH present AS (
    SELECT
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
        set_config('synchronous_commit', 'off', true)
), locked AS MATERIALIZED (
    SELECT found.place
    FROM unnest(
        %(lanes)s::text[], %(tenants)s::text[], %(ranks)s::integer[], %(counts)s::bigint[]
    ) AS asked (lane, tenant, rank, count), LATERAL (
        SELECT ctid AS place
        FROM {schema}.threads
        WHERE lane = asked.lane AND tenant = asked.tenant AND rank = asked.rank
            AND worker = '' AND due_at IS NOT NULL AND due_at <= (SELECT now FROM present)
        ORDER BY due_at
        LIMIT asked.count
        FOR UPDATE SKIP LOCKED
    ) AS found
    LIMIT %(limit)s::bigint
), taken AS (
    UPDATE {schema}.threads AS known
    SET worker = %(worker)s
    WHERE known.ctid = ANY (ARRAY(SELECT place FROM locked))
    RETURNING known.*
)
SELECT
    tenant, thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane,
    due_at, worker, rank
FROM taken
ORDER BY due_at, tenant, thread
