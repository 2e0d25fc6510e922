-- As take.sql, but the threads that are named.
WITH present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), locked AS MATERIALIZED (
    SELECT known.ctid AS place
    FROM unnest(%(tenants)s::text[], %(threads)s::text[]) AS asked (tenant, thread)
    JOIN {schema}.threads AS known
        ON known.tenant = asked.tenant AND known.thread = asked.thread
    WHERE known.lane = ANY (%(lanes)s::text[]) AND known.worker = ''
        AND known.due_at <= (SELECT now FROM present)
    ORDER BY known.due_at, known.tenant, known.thread
    LIMIT %(limit)s::bigint
    FOR UPDATE OF known SKIP LOCKED
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
