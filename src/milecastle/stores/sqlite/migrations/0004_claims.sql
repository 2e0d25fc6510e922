-- Workers share threads: the index says which may run a thread, from when on, and which one has it.

-- lane, due_at, worker, rank: NULL while the thread has no line. They are under the checksum, and a
-- claim writes it again. A row whose checksum did not match before has -1, which no row matches.
-- rank: the negated priority.
ALTER TABLE threads ADD COLUMN lane TEXT;
ALTER TABLE threads ADD COLUMN due_at INTEGER;
ALTER TABLE threads ADD COLUMN worker TEXT;
ALTER TABLE threads ADD COLUMN rank INTEGER;
UPDATE threads SET sum = -1
WHERE sum <> checksum(
    id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions
);
UPDATE threads SET lane = '', worker = '', rank = 0 WHERE status IS NOT NULL;
UPDATE threads SET sum = checksum(
    id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank
)
WHERE sum >= 0;
CREATE INDEX threads_by_due ON threads (lane, due_at, tenant, thread)
    WHERE worker = '' AND due_at IS NOT NULL;
CREATE INDEX threads_by_tenant ON threads (lane, tenant, rank, due_at, thread)
    WHERE worker = '' AND due_at IS NOT NULL;
CREATE INDEX threads_by_worker ON threads (worker, tenant, thread) WHERE worker <> '';

-- Inputs that wait until their thread is free. id: thread << 32 | number, in their order. mark: no
-- two of a thread have the same.
CREATE TABLE inputs (
    id INTEGER PRIMARY KEY,
    mark TEXT NOT NULL,
    run_id TEXT NOT NULL,
    payload BLOB NOT NULL,
    sum INTEGER NOT NULL
);

-- Who is alive. owner, lanes: JSON.
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    beat_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lanes TEXT NOT NULL,
    sum INTEGER NOT NULL
) WITHOUT ROWID;

-- What claims must not exceed. Empty: every graph, every tenant. period, begun: microseconds; begun
-- and used are those of the rate.
CREATE TABLE limits (
    graph TEXT NOT NULL,
    tenant TEXT NOT NULL,
    concurrency INTEGER,
    rate INTEGER,
    period INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    begun INTEGER NOT NULL,
    used INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (graph, tenant)
) WITHOUT ROWID;

PRAGMA user_version = 4;
