-- Ids of the form thread * 2^32 + n keep what belongs to a thread together and in order, without
-- a second index. Every row ends in a checksum over what stands before it.

-- The index of threads. A thread that is deleted and begun anew gets a new number: numbers are
-- never given twice, so that a late writer finds nothing to append to.
-- first: the oldest seq that was not pruned. runs, failures: how many there are.
-- status, started_at, run_id: those of the newest run.
CREATE TABLE threads (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    first INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    status TEXT,
    started_at INTEGER,
    run_id TEXT,
    sum INTEGER NOT NULL
);
CREATE UNIQUE INDEX threads_by_name ON threads (tenant, thread);
CREATE INDEX threads_by_status ON threads (tenant, status, thread) WHERE status IS NOT NULL;

-- The log. id: thread * 2^32 + seq.
-- checkpoint, parent: 16 bytes. parent is NULL if it is the entry before, empty if there is none.
-- origin: which run, under which fingerprint; see the table of that name.
-- source: 0 input, 1 step, 2 interrupt, 3 update, 4 fork, 5 takeover,
-- 6 answer, 7 sleep.
-- kind: 0 delta, 1 rollup, 2 snapshot. prior: the rollup or snapshot on which a rollup rests.
-- sum: the upper half over all columns but payload, the lower half over payload.
-- payload stands last, so that a history never touches the pages that it overflows to.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    checkpoint BLOB NOT NULL,
    parent BLOB,
    step INTEGER NOT NULL,
    source INTEGER NOT NULL,
    nodes TEXT,
    next TEXT,
    origin INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    base_seq INTEGER NOT NULL,
    roll_seq INTEGER NOT NULL,
    prior INTEGER,
    route TEXT,
    note TEXT NOT NULL,
    sum INTEGER NOT NULL,
    payload BLOB NOT NULL
);

-- What the entries of one run have in common, written once. id: thread * 2^32 + number.
CREATE TABLE origins (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    sum INTEGER NOT NULL
);

-- Results of tasks whose siblings still run. id: thread * 2^32 + number, from 1 and without gaps;
-- the last of a task is the one that counts.
-- head: the head under which it was written. All are of one step; they count until it ends.
CREATE TABLE results (
    id INTEGER PRIMARY KEY,
    head INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    task TEXT NOT NULL,
    payload BLOB NOT NULL,
    sum INTEGER NOT NULL
);

CREATE TABLE runs (
    thread INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    graph TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    mode TEXT NOT NULL,
    status TEXT NOT NULL,
    retry_count INTEGER NOT NULL,
    previous_run_id TEXT,
    ended_at INTEGER,
    input_digest TEXT NOT NULL,
    metadata TEXT NOT NULL,
    wake_at INTEGER,
    sum INTEGER NOT NULL,
    PRIMARY KEY (thread, run_id)
) WITHOUT ROWID;
CREATE INDEX runs_by_start ON runs (thread, started_at, run_id);

CREATE TABLE failures (
    thread INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    failure_class TEXT NOT NULL,
    resumable INTEGER NOT NULL,
    error_type TEXT NOT NULL,
    message TEXT NOT NULL,
    traceback TEXT NOT NULL,
    causes TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    time INTEGER NOT NULL,
    node TEXT,
    sum INTEGER NOT NULL,
    PRIMARY KEY (thread, run_id)
) WITHOUT ROWID;

CREATE TABLE manifests (
    tenant TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    manifest BLOB NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (tenant, fingerprint)
) WITHOUT ROWID;

PRAGMA application_id = 1298754661; -- "Mile"
PRAGMA user_version = 1;
