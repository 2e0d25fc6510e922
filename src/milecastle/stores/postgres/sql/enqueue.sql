-- An input that waits until its thread is free, with the record of its run, unless the thread has a
-- run of this id or of this input, or an input with this mark: the id of the run that it has then.
-- Null if the thread is in no lane. lock_thread.sql comes first: a run that ends meanwhile sees the
-- input, or is seen to have ended here, and so with a run that starts.
WITH line AS (
    SELECT tenant, thread
    FROM {schema}.threads
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND lane <> '' AND {placed}
), known AS (
    SELECT run_id, 1 AS place
    FROM {schema}.runs
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND run_id = %(run_id)s AND status IS NOT NULL AND NOT %(known)s
    UNION ALL
    (
        SELECT run_id, 2
        FROM {schema}.runs
        WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
            AND input_digest = %(unless)s AND input_digest <> '' AND status IS NOT NULL
        ORDER BY number DESC
        LIMIT 1
    )
    UNION ALL
    SELECT run_id, 3
    FROM {schema}.inputs
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND mark = %(mark)s
), added AS (
    INSERT INTO {schema}.inputs (tenant, thread, mark, run_id, payload)
    SELECT tenant, thread, %(mark)s, %(run_id)s, %(payload)s
    FROM line
    WHERE NOT EXISTS (SELECT FROM known)
    RETURNING tenant, thread, run_id
), woken AS (
    UPDATE {schema}.threads AS known
    SET
        inputs = known.inputs + 1,
        runs = known.runs + 1,
        due_at = CASE
            WHEN known.due_at IS NOT NULL OR known.worker <> '' THEN known.due_at
            WHEN known.status IN ('completed', 'cancelled')
            THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
            ELSE known.wake_at
        END
    FROM added
    WHERE known.tenant = added.tenant AND known.thread = added.thread
    RETURNING known.tenant, known.thread, known.runs
), kept_run AS (
    INSERT INTO {schema}.runs (
        shard, tenant, thread, run_id, graph, fingerprint, mode, status, retry_count,
        previous_run_id, started_at, ended_at, input_digest, metadata, wake_at, owner, number
    )
    SELECT
        %(shard)s, woken.tenant, woken.thread, run.run_id, run.graph, run.fingerprint, run.mode,
        run.status, run.retry_count, run.previous_run_id, run.started_at, run.ended_at,
        run.input_digest, run.metadata, run.wake_at, run.owner, woken.runs
    FROM woken, jsonb_to_record(%(record)s::jsonb) AS run (
        run_id text, graph text, fingerprint text, mode text, status text, retry_count bigint,
        previous_run_id text, started_at bigint, ended_at bigint, input_digest text,
        metadata text, wake_at bigint, owner text
    )
    ON CONFLICT (shard, tenant, thread, run_id) DO NOTHING
)
SELECT coalesce(
    (SELECT known.run_id FROM known, line ORDER BY known.place LIMIT 1),
    (SELECT run_id FROM added)
)
