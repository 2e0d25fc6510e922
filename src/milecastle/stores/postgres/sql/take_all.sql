-- Everything that is due in some lanes, given to a worker, unless it is more than asked for or there
-- are limits. As in take.sql, nobody waits, and the commit does not wait for the disk.
WITH present AS (
    SELECT
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
        set_config('synchronous_commit', 'off', true)
), locked AS MATERIALIZED (
    SELECT found.place
    FROM unnest(%(lanes)s::text[]) AS asked (lane), LATERAL (
        SELECT ctid AS place
        FROM {schema}.threads
        WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
            AND due_at <= (SELECT now FROM present)
        ORDER BY due_at
        LIMIT %(limit)s::bigint + 1
        FOR UPDATE SKIP LOCKED
    ) AS found
), taken AS (
    UPDATE {schema}.threads AS known
    SET worker = %(worker)s
    WHERE known.ctid = ANY (ARRAY(SELECT place FROM locked))
        AND (SELECT count(*) FROM locked) <= %(limit)s::bigint
        AND NOT EXISTS (SELECT FROM {schema}.limits)
    RETURNING known.*
)
SELECT
    tenant, thread, status, run_id, graph, started_at, ended_at, wake_at, questions, lane,
    due_at, worker, rank
FROM taken
ORDER BY due_at, tenant, thread
