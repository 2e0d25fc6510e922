, kept_run AS (
    INSERT INTO {schema}.runs (
        shard, tenant, thread, run_id, graph, fingerprint, mode, status, retry_count,
        previous_run_id, started_at, ended_at, input_digest, metadata, wake_at, owner, number
    )
    SELECT
        $1, line.tenant, line.thread, run.run_id, run.graph, run.fingerprint, run.mode,
        run.status, run.retry_count, run.previous_run_id, run.started_at, run.ended_at,
        run.input_digest, run.metadata, run.wake_at, run.owner, line.runs
    FROM line, jsonb_to_record($11) AS run (
        run_id text, graph text, fingerprint text, mode text, status text, retry_count bigint,
        previous_run_id text, started_at bigint, ended_at bigint, input_digest text,
        metadata text, wake_at bigint, owner text
    )
)