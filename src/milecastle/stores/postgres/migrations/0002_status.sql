-- The index says what a thread is by the head of its log, when it wakes and how many questions are
-- open. Runs are listed in the order in which they were first recorded, and name the process that
-- drives them.

-- owner: JSON. number: in the order of recording, never used twice; for older runs in the order of
-- their start. Null while only the failure is there.
ALTER TABLE {schema}.runs ADD COLUMN owner text COLLATE "C", ADD COLUMN number bigint;
UPDATE {schema}.runs AS run
SET number = counted.number
FROM (
    SELECT
        shard, tenant, thread, run_id, row_number() OVER (
            PARTITION BY shard, tenant, thread ORDER BY started_at, run_id
        ) AS number
    FROM {schema}.runs
    WHERE status IS NOT NULL
) AS counted
WHERE run.shard = counted.shard AND run.tenant = counted.tenant
    AND run.thread = counted.thread AND run.run_id = counted.run_id;

-- status, wake_at, questions: those of the thread. run_id, graph, started_at, ended_at: those of
-- the run that wrote the head. told: whether a writer told them; if not, they are those of a run
-- record, and what a writer tells takes their place. runs: the greatest number of a run.
ALTER TABLE {schema}.threads
    ADD COLUMN wake_at bigint,
    ADD COLUMN runs bigint NOT NULL DEFAULT 0,
    ADD COLUMN questions integer NOT NULL DEFAULT 0,
    ADD COLUMN told boolean NOT NULL DEFAULT true;
UPDATE {schema}.threads AS known
SET runs = counted.number
FROM (
    SELECT tenant, thread, max(number) AS number FROM {schema}.runs GROUP BY tenant, thread
) AS counted
WHERE known.tenant = counted.tenant AND known.thread = counted.thread
    AND counted.number IS NOT NULL;
-- The head's run, if its id is a UUID; other threads keep the run that they had.
UPDATE {schema}.threads AS known
SET
    status = CASE
        WHEN head.is_over THEN 'completed'
        WHEN run.status IN ('completed', 'superseded') THEN 'interrupted'
        ELSE run.status
    END,
    run_id = run.run_id, graph = run.graph, started_at = run.started_at, ended_at = run.ended_at,
    wake_at = CASE WHEN NOT head.is_over THEN run.wake_at END
FROM (
    SELECT DISTINCT shard, tenant, thread FROM {schema}.runs
) AS place, LATERAL (
    SELECT
        entry.next = '' AND entry.route = '' AS is_over, entry.seq - (entry.seq & 4294967295) AS life,
        entry.told
    FROM {schema}.entries AS entry
    WHERE entry.shard = place.shard AND entry.tenant = place.tenant
        AND entry.thread = place.thread
    ORDER BY entry.seq DESC
    LIMIT 1
) AS head, LATERAL (
    SELECT entry.origin
    FROM {schema}.entries AS entry
    WHERE entry.shard = place.shard AND entry.tenant = place.tenant
        AND entry.thread = place.thread AND entry.seq >= head.life + head.told
    ORDER BY entry.seq
    LIMIT 1
) AS teller, {schema}.runs AS run
WHERE known.tenant = place.tenant AND known.thread = place.thread AND known.run_id IS NOT NULL
    AND get_byte(teller.origin || '\x01', 0) = 0
    AND run.shard = place.shard AND run.tenant = place.tenant AND run.thread = place.thread
    AND run.run_id = encode(substr(teller.origin, 2, 16), 'hex')::uuid::text
    AND run.status IS NOT NULL;
