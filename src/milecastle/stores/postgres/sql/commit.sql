-- Batches with any parts, in one statement, each thread once: all of a batch, or nothing if the
-- fence refuses it. What it returns are the numbers of those that were written.
-- Whoever writes a record passes the row of the thread: of two who meet there, the second sees
-- the fence that the first left behind.
--
-- The condition on the head stands in a CASE because the planner would take an equation for one
-- that hardly any batch meets, and join what is left in loops.
--
-- Parameters by number and in binary. Of each batch: shard 1, tenant 2, thread 3, head 4, count of
-- entries 5. Of each entry: batch 6, then as in append.sql kind 7, step 8, base_seq 9, roll_seq 10,
-- created_at 11, source 12, id 13, parent 14, origin 15, nodes 16, next 17, route 18, note 19,
-- payload 20. Runs 21 and failures 22 as JSON. Of each manifest: batch 23, fingerprint 24, body 25.
-- Of each result: batch 26, digest 27, seq 28, task 29, payload 30.
WITH batch AS (
    SELECT *
    FROM unnest($1, $2, $3, $4, $5) WITH ORDINALITY
        AS batch (shard, tenant, thread, head, count, number)
), head AS (
    SELECT
        batch.*, coalesce(last.seq, 0) AS seq, last.id, coalesce(last.held, 0) AS held,
        coalesce(last.told, 0) AS told
    FROM batch LEFT JOIN LATERAL (
        SELECT seq, id, held, told
        FROM {schema}.entries
        WHERE shard = batch.shard AND tenant = batch.tenant AND thread = batch.thread
        ORDER BY seq DESC
        LIMIT 1
    ) AS last ON true
    WHERE CASE WHEN coalesce(last.seq, 0) & 4294967295 = batch.head THEN true ELSE false END
), given_run AS (
    SELECT * FROM jsonb_to_recordset($21) AS run (
        batch bigint, run_id text, graph text, fingerprint text, mode text, status text,
        retry_count bigint, previous_run_id text, started_at bigint, ended_at bigint,
        input_digest text, metadata text, wake_at bigint
    )
), newest_run AS (
    SELECT DISTINCT ON (batch) *
    FROM given_run
    ORDER BY batch, started_at DESC, run_id COLLATE "C" DESC
), gate AS (
    INSERT INTO {schema}.threads AS known (
        tenant, thread, fence, run_id, status, graph, started_at, ended_at
    )
    SELECT
        head.tenant, head.thread, head.seq + head.count,
        run.run_id, run.status, run.graph, run.started_at, run.ended_at
    FROM head LEFT JOIN newest_run AS run ON run.batch = head.number
    ORDER BY head.number
    ON CONFLICT (tenant, thread) DO UPDATE SET
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
    RETURNING tenant, thread
), passed AS (
    SELECT head.* FROM gate JOIN head USING (tenant, thread)
), placed AS (
    SELECT given.*, row_number() OVER (PARTITION BY batch ORDER BY given.ordinality) AS place
    FROM unnest(
        $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20
    ) WITH ORDINALITY AS given (
        batch, kind, step, base_seq, roll_seq, created_at, source, id, parent, origin, nodes,
        next, route, note, payload, ordinality
    )
), followed AS (
    SELECT
        placed.*,
        coalesce(lag(placed.id) OVER log, passed.id) AS id_before,
        lag(placed.origin) OVER log AS origin_before
    FROM placed JOIN passed ON passed.number = placed.batch
    WINDOW log AS (PARTITION BY placed.batch ORDER BY placed.place)
), new_entry AS (
    SELECT
        followed.*, passed.shard, passed.tenant, passed.thread,
        passed.seq + followed.place AS seq,
        coalesce(
            passed.head + max(followed.place) FILTER (
                WHERE followed.origin IS DISTINCT FROM followed.origin_before
            ) OVER log,
            passed.told
        ) AS told,
        followed.place - coalesce(
            max(followed.place) FILTER (WHERE followed.source < 8) OVER log, -passed.held
        ) AS held
    FROM followed JOIN passed ON passed.number = followed.batch
    WINDOW log AS (PARTITION BY followed.batch ORDER BY followed.place)
), kept_entry AS (
    INSERT INTO {schema}.entries (
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id, parent, origin, nodes, next, route, note, payload
    )
    SELECT
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id,
        CASE WHEN parent = id_before THEN '' ELSE parent END,
        CASE WHEN origin = origin_before THEN '' ELSE origin END,
        nodes, next, route, note, payload
    FROM new_entry
    ORDER BY batch, place
), kept_run AS (
    INSERT INTO {schema}.runs (
        shard, tenant, thread, run_id, graph, fingerprint, mode, status, retry_count,
        previous_run_id, started_at, ended_at, input_digest, metadata, wake_at
    )
    SELECT
        passed.shard, passed.tenant, passed.thread, run.run_id, run.graph, run.fingerprint,
        run.mode, run.status, run.retry_count, run.previous_run_id, run.started_at, run.ended_at,
        run.input_digest, run.metadata, run.wake_at
    FROM given_run AS run JOIN passed ON passed.number = run.batch
    ORDER BY passed.number, run.run_id COLLATE "C"
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
        metadata = excluded.metadata,
        wake_at = excluded.wake_at
), kept_failure AS (
    INSERT INTO {schema}.failures (
        shard, tenant, thread, run_id, failure_class, resumable, error_type, message, traceback,
        causes, attempt, time, node
    )
    SELECT
        passed.shard, passed.tenant, passed.thread, failure.run_id, failure.failure_class,
        failure.resumable, failure.error_type, failure.message, failure.traceback,
        failure.causes, failure.attempt, failure.time, failure.node
    FROM jsonb_to_recordset($22) AS failure (
        batch bigint, run_id text, failure_class text, resumable boolean, error_type text,
        message text, traceback text, causes text, attempt bigint, time bigint, node text
    ) JOIN passed ON passed.number = failure.batch
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
    SELECT passed.tenant, given.fingerprint, given.manifest
    FROM unnest($23, $24, $25) AS given (batch, fingerprint, manifest)
    JOIN passed ON passed.number = given.batch
    WHERE NOT EXISTS (
        SELECT FROM {schema}.manifests AS known
        WHERE known.tenant = passed.tenant AND known.fingerprint = given.fingerprint
    )
    ORDER BY passed.tenant, given.fingerprint
    ON CONFLICT (tenant, fingerprint) DO NOTHING
), settled AS (
    SELECT shard, tenant, thread, max(seq - held) AS seq
    FROM new_entry
    GROUP BY shard, tenant, thread
    UNION ALL
    SELECT shard, tenant, thread, seq - held FROM passed WHERE count = 0
), spent_result AS (
    DELETE FROM {schema}.results AS result
    USING settled
    WHERE result.shard = settled.shard AND result.tenant = settled.tenant
        AND result.thread = settled.thread AND result.seq < settled.seq
), kept_result AS (
    INSERT INTO {schema}.results (shard, tenant, thread, seq, digest, given, task, payload)
    SELECT
        passed.shard, passed.tenant, passed.thread, passed.seq + passed.count, result.digest,
        result.given, result.task, result.payload
    FROM unnest($26, $27, $28, $29, $30) AS result (batch, digest, given, task, payload)
    JOIN passed ON passed.number = result.batch
    ON CONFLICT (shard, tenant, thread, seq, digest) DO UPDATE SET
        given = excluded.given,
        task = excluded.task,
        payload = excluded.payload
)
SELECT number FROM passed
