-- An input that waits until its thread is free, with the record of its run. The row of the thread is
-- locked first: a run that ends meanwhile sees the input, or is seen to have ended here.
WITH line AS MATERIALIZED (
    SELECT tenant, thread, runs
    FROM {schema}.threads
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND lane <> '' AND {placed}
    FOR UPDATE
), added AS (
    INSERT INTO {schema}.inputs (tenant, thread, mark, run_id, payload)
    SELECT tenant, thread, %(mark)s, %(run_id)s, %(payload)s FROM line
    ON CONFLICT (tenant, thread, mark) DO NOTHING
    RETURNING tenant, thread
), woken AS (
    UPDATE {schema}.threads AS known
    SET
        inputs = known.inputs + 1,
        runs = known.runs + 1,
        due_at = CASE
            WHEN known.due_at IS NULL AND known.worker = ''
                AND known.status IN ('completed', 'cancelled')
            THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
            ELSE known.due_at
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
SELECT (SELECT count(*) FROM line), (SELECT count(*) FROM added)
