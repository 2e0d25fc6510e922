-- Batches with any parts, in one statement, each thread once: all of a batch, or nothing if the
-- fence refuses it. What it returns are the numbers of those that were written.
-- Whoever writes a record passes the row of the thread: of two who meet there, the second sees
-- the fence that the first left behind.
--
-- The condition on the head stands in a CASE because the planner would take an equation for one
-- that hardly any batch meets, and join what is left in loops.
--
-- Parameters by number and in binary. Of each batch: shard 1, tenant 2, thread 3, head 4, count of
-- entries 5, how many of them hold in a row at its end 6. Of each entry: batch 7, place in it 8, how
-- many hold in a row up to here 9, told 10; then as in append.sql kind 11, step 12, base_seq 13,
-- roll_seq 14, created_at 15, source 16, id 17, parent 18, origin 19, nodes 20, next 21, route 22,
-- note 23, payload 24. Parent and origin are empty where the entry before in the batch has them.
-- Runs 25 as JSON, with their failures and their place in the batch; one of which only a failure is
-- given has no status.
-- Of each manifest: batch 26, fingerprint 27, body 28.
-- Of each result: batch 29, digest 30, seq 31, task 32, payload 33.
-- Of each batch again: the id of the head 34, empty if the writer does not know it.
-- Lines of the index 35 as JSON, with how many runs their batch has. One that the writer did not
-- tell is made of a run, and only for a thread that has none. One that is due at 0 is due now, and so
-- is one that leaves its thread free for a waiting input; one that sleeps is then due when it wakes.
-- excluded.inputs is how many of these the batch consumes. unless: a run of the thread that has this
-- input refuses the batch; so does one that was recorded meanwhile, whatever its input.
-- At its end tags.sql, if a batch has any: of each tag that is removed batch 36 and text 37, of each that
-- is added batch 38 and text 39. If a batch consumes messages, also messages.sql and consumed.sql: of
-- each message batch 40 and number 41; a batch is refused if one of them is not unread.
WITH given_line AS (
    SELECT * FROM jsonb_to_recordset($35) AS line (
        batch bigint, told boolean, runs bigint, run_id text, status text, graph text,
        started_at bigint, ended_at bigint, wake_at bigint, questions integer, lane text,
        due_at bigint, worker text, rank integer, waiting_topics jsonb, unless text, limit_key text
    )
){messages}, head AS (
    SELECT
        batch.*, coalesce(last.seq, 0) AS seq, last.id, coalesce(last.held, 0) AS held_before,
        CASE WHEN line.unless IS NOT NULL THEN (
            SELECT known.runs
            FROM {schema}.threads AS known
            WHERE known.tenant = batch.tenant AND known.thread = batch.thread
        ) END AS runs_seen
    FROM unnest($1, $2, $3, $4, $5, $6, $34) WITH ORDINALITY
        AS batch (shard, tenant, thread, head, count, held, head_id, number)
    LEFT JOIN given_line AS line ON line.batch = batch.number
    LEFT JOIN LATERAL (
        SELECT seq, id, held
        FROM {schema}.entries
        WHERE shard = batch.shard AND tenant = batch.tenant AND thread = batch.thread
        ORDER BY seq DESC
        LIMIT 1
    ) AS last ON true
    WHERE CASE
        WHEN coalesce(last.seq, 0) & 4294967295 = batch.head
            AND (batch.head_id = '' OR batch.head_id = last.id) THEN true
        ELSE false
    END AND CASE WHEN line.unless IS NULL THEN true ELSE NOT EXISTS (
        SELECT FROM {schema}.runs AS run
        WHERE run.shard = batch.shard AND run.tenant = batch.tenant AND run.thread = batch.thread
            AND run.input_digest = line.unless AND run.input_digest <> ''
    ) END AND {are_unread} AND {placed}
), given_run AS (
    SELECT * FROM jsonb_to_recordset($25) AS run (
        batch bigint, place bigint, run_id text, graph text, fingerprint text, mode text,
        status text, retry_count bigint, previous_run_id text, started_at bigint,
        ended_at bigint, input_digest text, metadata text, wake_at bigint, owner text, failure text
    )
), gate AS (
    INSERT INTO {schema}.threads AS known (
        tenant, thread, fence, runs, told, run_id, status, graph, started_at, ended_at, wake_at,
        questions, lane, due_at, worker, rank, waiting_topics, limit_key, inputs{shard_column}
    )
    SELECT
        head.tenant, head.thread, head.seq + head.count, coalesce(line.runs, 0),
        coalesce(line.told, false), line.run_id, line.status, line.graph, line.started_at,
        line.ended_at, line.wake_at, coalesce(line.questions, 0), coalesce(line.lane, ''),
        CASE
            WHEN line.due_at <= 0
            THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - line.due_at
            ELSE line.due_at
        END,
        coalesce(line.worker, ''), coalesce(line.rank, 0), line.waiting_topics,
        coalesce(line.limit_key, '~'), {spent}{shard_value}
    FROM head LEFT JOIN given_line AS line ON line.batch = head.number
    ORDER BY head.number
    ON CONFLICT (tenant, thread) DO UPDATE SET
        fence = excluded.fence,
        runs = known.runs + excluded.runs,
        inputs = greatest(0, known.inputs - excluded.inputs),
        (
            told, run_id, status, graph, started_at, ended_at, wake_at, questions, lane, due_at,
            worker, rank, waiting_topics, limit_key, changed
        ) = (
            SELECT
                told, run_id, status, graph, started_at, ended_at, wake_at, questions, lane,
                due_at, worker, rank, waiting_topics, limit_key, changed
            FROM (
                VALUES
                (
                    known.told, known.run_id, known.status, known.graph, known.started_at,
                    known.ended_at, known.wake_at, known.questions, known.lane, known.due_at,
                    known.worker, known.rank, known.waiting_topics, known.limit_key,
                    known.changed, 1
                ),
                (
                    excluded.told, excluded.run_id, excluded.status, excluded.graph,
                    excluded.started_at, excluded.ended_at, excluded.wake_at, excluded.questions,
                    CASE
                        WHEN excluded.lane = '' AND known.inputs > excluded.inputs THEN known.lane
                        ELSE excluded.lane
                    END,
                    CASE
                        WHEN excluded.due_at IS NOT NULL OR known.inputs <= excluded.inputs
                        THEN excluded.due_at
                        WHEN excluded.status IN ('completed', 'cancelled')
                        THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
                        ELSE excluded.wake_at
                    END,
                    excluded.worker, excluded.rank, excluded.waiting_topics, excluded.limit_key,
                    excluded.changed,
                    CASE WHEN excluded.told OR known.run_id IS NULL THEN 0 ELSE 2 END
                )
            ) AS either (
                told, run_id, status, graph, started_at, ended_at, wake_at, questions, lane,
                due_at, worker, rank, waiting_topics, limit_key, changed, place
            )
            ORDER BY place
            LIMIT 1
        )
    WHERE known.fence <= excluded.fence AND known.runs = (
        SELECT coalesce(head.runs_seen, known.runs)
        FROM head
        WHERE head.tenant = excluded.tenant AND head.thread = excluded.thread
    )
    RETURNING tenant, thread, runs, run_id IS NOT NULL AS is_listed
), passed AS (
    SELECT head.*, gate.is_listed, gate.runs - coalesce(line.runs, 0) AS runs_before
    FROM gate JOIN head USING (tenant, thread)
    LEFT JOIN given_line AS line ON line.batch = head.number
), kept_entry AS (
    INSERT INTO {schema}.entries (
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id, parent, origin, nodes, next, route, note, payload
    )
    SELECT
        passed.shard, passed.tenant, passed.thread, passed.seq + given.place, given.kind,
        given.step, given.base_seq, given.roll_seq, given.created_at, given.source,
        given.held + CASE WHEN given.held = given.place THEN passed.held_before ELSE 0 END,
        given.told, given.id,
        CASE WHEN given.place = 1 AND given.parent = passed.id THEN '' ELSE given.parent END,
        given.origin, given.nodes, given.next, given.route, given.note, given.payload
    FROM unnest(
        $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24
    ) AS given (
        batch, place, held, told, kind, step, base_seq, roll_seq, created_at, source, id, parent,
        origin, nodes, next, route, note, payload
    ) JOIN passed ON passed.number = given.batch
    ORDER BY given.batch, given.place
), kept_run AS (
    INSERT INTO {schema}.runs AS known (
        shard, tenant, thread, run_id, graph, fingerprint, mode, status, retry_count,
        previous_run_id, started_at, ended_at, input_digest, metadata, wake_at, owner, number,
        failure
    )
    SELECT
        passed.shard, passed.tenant, passed.thread, run.run_id, run.graph, run.fingerprint,
        run.mode, run.status, run.retry_count, run.previous_run_id, run.started_at, run.ended_at,
        run.input_digest, run.metadata, run.wake_at, run.owner,
        CASE WHEN run.status IS NOT NULL THEN passed.runs_before + run.place END, run.failure
    FROM given_run AS run JOIN passed ON passed.number = run.batch
    ORDER BY run.batch, run.place
    ON CONFLICT (shard, tenant, thread, run_id) DO UPDATE SET
        graph = coalesce(excluded.graph, known.graph),
        fingerprint = coalesce(excluded.fingerprint, known.fingerprint),
        mode = coalesce(excluded.mode, known.mode),
        status = coalesce(excluded.status, known.status),
        retry_count = coalesce(excluded.retry_count, known.retry_count),
        previous_run_id = CASE
            WHEN excluded.status IS NULL THEN known.previous_run_id ELSE excluded.previous_run_id
        END,
        started_at = coalesce(excluded.started_at, known.started_at),
        ended_at = CASE
            WHEN excluded.status IS NULL THEN known.ended_at ELSE excluded.ended_at
        END,
        input_digest = coalesce(excluded.input_digest, known.input_digest),
        metadata = coalesce(excluded.metadata, known.metadata),
        wake_at = CASE WHEN excluded.status IS NULL THEN known.wake_at ELSE excluded.wake_at END,
        owner = CASE WHEN excluded.status IS NULL THEN known.owner ELSE excluded.owner END,
        number = coalesce(known.number, excluded.number),
        place = CASE WHEN known.status IS NULL THEN excluded.place ELSE known.place END,
        failure = coalesce(excluded.failure, known.failure)
), kept_manifest AS (
    INSERT INTO {schema}.manifests (tenant, fingerprint, manifest)
    SELECT passed.tenant, given.fingerprint, given.manifest
    FROM unnest($26, $27, $28) AS given (batch, fingerprint, manifest)
    JOIN passed ON passed.number = given.batch
    ORDER BY passed.tenant, given.fingerprint
    ON CONFLICT (tenant, fingerprint) DO NOTHING
), spent_result AS (
    DELETE FROM {schema}.results AS result
    USING passed
    WHERE result.shard = passed.shard AND result.tenant = passed.tenant
        AND result.thread = passed.thread
        AND result.seq < passed.seq + passed.count - passed.held
            - CASE WHEN passed.held = passed.count THEN passed.held_before ELSE 0 END
), kept_result AS (
    INSERT INTO {schema}.results (shard, tenant, thread, seq, digest, given, task, payload)
    SELECT
        passed.shard, passed.tenant, passed.thread, passed.seq + passed.count, result.digest,
        result.given, result.task, result.payload
    FROM unnest($29, $30, $31, $32, $33) AS result (batch, digest, given, task, payload)
    JOIN passed ON passed.number = result.batch
    ON CONFLICT (shard, tenant, thread, seq, digest) DO UPDATE SET
        given = excluded.given,
        task = excluded.task,
        payload = excluded.payload
){tags}{consumed}
SELECT number FROM passed
