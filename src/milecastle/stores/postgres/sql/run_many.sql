-- As run.sql, for runs of several threads; the last column is the number of the thread.
SELECT
    run_id, graph, fingerprint, mode, status, retry_count, previous_run_id, started_at, ended_at,
    input_digest, metadata, wake_at, owner, asked.number
FROM unnest(
    %(shards)s::smallint[], %(tenants)s::text[], %(threads)s::text[], %(run_ids)s::text[]
) WITH ORDINALITY AS asked (shard, tenant, thread, run, number)
JOIN {schema}.runs AS known
    ON known.shard = asked.shard AND known.tenant = asked.tenant
        AND known.thread = asked.thread AND known.run_id = asked.run
WHERE known.status IS NOT NULL AND {readable}
