-- The index says what a thread is by the head of its log, when it wakes and how many questions are
-- open. Runs are listed in the order in which they were first recorded, and name the process that
-- drives them.
--
-- checksum(...) is a function of the library: the script runs when the file is opened by it. A row
-- whose checksum did not match before has -1, which no row matches: it stays damaged.

-- number: from 1 without gaps, in the order of recording; for older runs in the order of their
-- start. It is not under the checksum: a list of runs is complete only if no number is missing.
-- owner: JSON, or NULL.
ALTER TABLE runs ADD COLUMN owner TEXT;
ALTER TABLE runs ADD COLUMN number INTEGER;
UPDATE runs SET number = counted.number
FROM (
    SELECT thread, run_id, row_number() OVER (PARTITION BY thread ORDER BY started_at, run_id)
        AS number
    FROM runs
) AS counted
WHERE counted.thread = runs.thread AND counted.run_id = runs.run_id;
UPDATE runs SET sum = CASE
    WHEN sum = checksum(
        thread, run_id, started_at, graph, fingerprint, mode, status, retry_count,
        previous_run_id, ended_at, input_digest, metadata, wake_at
    ) THEN checksum(
        thread, run_id, started_at, graph, fingerprint, mode, status, retry_count,
        previous_run_id, ended_at, input_digest, metadata, wake_at, owner
    )
    ELSE -1
END;
DROP INDEX runs_by_start;
CREATE UNIQUE INDEX runs_by_number ON runs (thread, number);

-- status, wake_at, questions: those of the thread. run_id, graph, started_at, ended_at: those of
-- the run that wrote the head. All are NULL while the thread has no run.
ALTER TABLE threads ADD COLUMN graph TEXT;
ALTER TABLE threads ADD COLUMN ended_at INTEGER;
ALTER TABLE threads ADD COLUMN wake_at INTEGER;
ALTER TABLE threads ADD COLUMN questions INTEGER;
UPDATE threads SET sum = -1
WHERE sum <> checksum(
    id, tenant, thread, first, runs, failures, status, started_at, run_id
);
UPDATE threads SET
    run_id = origins.run_id,
    status = CASE WHEN entries.next IS NULL AND entries.route IS NULL THEN 'completed' END
FROM entries, origins
WHERE threads.status IS NOT NULL
    AND entries.id = (
        SELECT max(id) FROM entries
        WHERE id BETWEEN threads.id * 4294967296 AND threads.id * 4294967296 + 4294967295
    )
    AND origins.id = threads.id * 4294967296 + entries.origin
    AND EXISTS (
        SELECT * FROM runs WHERE runs.thread = threads.id AND runs.run_id = origins.run_id
    );
UPDATE threads SET
    status = CASE
        WHEN threads.status = 'completed' THEN 'completed'
        WHEN threads.status IS NULL AND runs.status IN ('completed', 'superseded')
            THEN 'interrupted'
        ELSE runs.status
    END,
    graph = runs.graph,
    started_at = runs.started_at,
    ended_at = runs.ended_at,
    wake_at = CASE WHEN threads.status = 'completed' THEN NULL ELSE runs.wake_at END,
    questions = 0
FROM runs
WHERE runs.thread = threads.id AND runs.run_id = threads.run_id;
UPDATE threads SET sum = checksum(
    id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions
)
WHERE sum >= 0;

PRAGMA user_version = 2;
