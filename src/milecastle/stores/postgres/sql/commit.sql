-- A batch with any parts, in one statement: all of it, or nothing if the fence refuses.
-- Whoever writes a record passes the row of the thread: of two who meet there, the second sees
-- the fence that the first left behind.
WITH last AS (
    SELECT seq, origin, settled
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), head AS (
    SELECT seq, origin, settled FROM last
    UNION ALL
    SELECT 0, 0, 0 WHERE NOT EXISTS (SELECT FROM last)
), given_run AS (
    SELECT * FROM jsonb_to_recordset(%(runs)s::jsonb) AS run (
        run_id text, graph text, fingerprint text, mode text, status text, retry_count bigint,
        previous_run_id text, started_at bigint, ended_at bigint, input_digest text, metadata text
    )
), newest_run AS (
    SELECT * FROM given_run ORDER BY started_at DESC, run_id COLLATE "C" DESC LIMIT 1
), gate AS (
    INSERT INTO {schema}.threads AS known (
        shard, tenant, thread, fence, run_id, status, graph, started_at, ended_at
    )
    SELECT
        %(shard)s, %(tenant)s, %(thread)s, head.seq + %(count)s,
        run.run_id, run.status, run.graph, run.started_at, run.ended_at
    FROM head LEFT JOIN newest_run AS run ON true
    WHERE head.seq - head.origin = %(head)s
    ON CONFLICT (shard, tenant, thread) DO UPDATE SET
        fence = excluded.fence,
        (run_id, status, graph, started_at, ended_at) = (
            SELECT run_id, status, graph, started_at, ended_at
            FROM (
                VALUES
                (0, known.run_id, known.status, known.graph, known.started_at, known.ended_at),
                (
                    1, excluded.run_id, excluded.status, excluded.graph, excluded.started_at,
                    excluded.ended_at
                )
            ) AS either (place, run_id, status, graph, started_at, ended_at)
            WHERE run_id IS NOT NULL
            ORDER BY started_at DESC, run_id COLLATE "C" DESC, place DESC
            LIMIT 1
        )
    WHERE known.fence <= excluded.fence
    RETURNING fence
), passed AS (
    SELECT head.seq, head.origin, head.settled FROM gate, head
), new_entry AS (
    SELECT
        given.*, passed.seq + place AS seq, passed.origin AS origin,
        coalesce(
            max(passed.seq + place) FILTER (WHERE source <> 'takeover') OVER (ORDER BY place),
            passed.settled
        ) AS settled
    FROM passed, unnest(
        %(kinds)s::smallint[], %(steps)s::bigint[], %(base_seqs)s::bigint[],
        %(roll_seqs)s::bigint[], %(created_ats)s::bigint[], %(ids)s::text[],
        %(parent_ids)s::text[], %(run_ids)s::text[], %(fingerprints)s::text[],
        %(sources)s::text[], %(nodess)s::text[], %(nexts)s::text[], %(routes)s::text[],
        %(notes)s::text[], %(payloads)s::bytea[]
    ) WITH ORDINALITY AS given (
        kind, step, base_seq, roll_seq, created_at, id, parent_id, run_id, fingerprint, source,
        nodes, next, route, note, payload, place
    )
), kept_entry AS (
    INSERT INTO {schema}.entries (
        shard, kind, seq, origin, settled, step, base_seq, roll_seq, created_at, tenant, thread,
        id, parent_id, run_id, fingerprint, source, nodes, next, route, note, payload
    )
    SELECT
        %(shard)s, kind, seq, origin, settled, step, base_seq, roll_seq, created_at,
        %(tenant)s, %(thread)s, id, parent_id, run_id, fingerprint, source, nodes, next, route,
        note, payload
    FROM new_entry
), kept_run AS (
    INSERT INTO {schema}.runs (
        shard, tenant, thread, run_id, graph, fingerprint, mode, status, retry_count,
        previous_run_id, started_at, ended_at, input_digest, metadata
    )
    SELECT
        %(shard)s, %(tenant)s, %(thread)s, run_id, graph, fingerprint, mode, status, retry_count,
        previous_run_id, started_at, ended_at, input_digest, metadata
    FROM passed, given_run
    ORDER BY run_id COLLATE "C"
    ON CONFLICT (shard, tenant, thread, run_id) DO UPDATE SET
        graph = excluded.graph,
        fingerprint = excluded.fingerprint,
        mode = excluded.mode,
        status = excluded.status,
        retry_count = excluded.retry_count,
        previous_run_id = excluded.previous_run_id,
        started_at = excluded.started_at,
        ended_at = excluded.ended_at,
        input_digest = excluded.input_digest,
        metadata = excluded.metadata
), kept_failure AS (
    INSERT INTO {schema}.failures (
        shard, tenant, thread, run_id, failure_class, resumable, error_type, message, traceback,
        causes, attempt, time, node
    )
    SELECT
        %(shard)s, %(tenant)s, %(thread)s, failure.*
    FROM passed, jsonb_to_recordset(%(failures)s::jsonb) AS failure (
        run_id text, failure_class text, resumable boolean, error_type text, message text,
        traceback text, causes text, attempt bigint, time bigint, node text
    )
    ON CONFLICT (shard, tenant, thread, run_id) DO UPDATE SET
        failure_class = excluded.failure_class,
        resumable = excluded.resumable,
        error_type = excluded.error_type,
        message = excluded.message,
        traceback = excluded.traceback,
        causes = excluded.causes,
        attempt = excluded.attempt,
        time = excluded.time,
        node = excluded.node
), kept_manifest AS (
    INSERT INTO {schema}.manifests (tenant, fingerprint, manifest)
    SELECT %(tenant)s, %(manifest_fingerprint)s::text, %(manifest)s::bytea
    FROM passed
    WHERE %(manifest)s::bytea IS NOT NULL
    ON CONFLICT (tenant, fingerprint) DO NOTHING
), spent_result AS (
    DELETE FROM {schema}.results AS result
    USING passed
    WHERE result.shard = %(shard)s AND result.tenant = %(tenant)s AND result.thread = %(thread)s
        AND result.seq < coalesce((SELECT max(settled) FROM new_entry), passed.settled)
), kept_result AS (
    INSERT INTO {schema}.results (shard, tenant, thread, seq, digest, given, task, payload)
    SELECT
        %(shard)s, %(tenant)s, %(thread)s, passed.seq + %(count)s, digest, given, task, payload
    FROM passed, unnest(
        %(result_digests)s::bytea[], %(result_seqs)s::bigint[], %(result_tasks)s::text[],
        %(result_payloads)s::bytea[]
    ) AS result (digest, given, task, payload)
    ON CONFLICT (shard, tenant, thread, seq, digest) DO UPDATE SET
        given = excluded.given,
        task = excluded.task,
        payload = excluded.payload
)
SELECT seq FROM passed
