-- Ids of the form thread * 2^32 + n keep a thread's rows together and in order, without a second
-- index. sum: the checksum over the columns before it. The columns after it are not covered: a wrong
-- value there puts a sound row into another place of a list, and damages nothing.
--
-- checksum(...) is a function of the library, for migrations that change a column it covers. A row
-- whose checksum did not match before must get -1, which no row matches: it stays damaged.

-- The index of threads. A thread that is deleted and begun again gets a new number: numbers are
-- never given twice, so that a late writer finds nothing to append to.
-- first: the oldest seq that was not pruned. runs, failures: how many there are.
-- status, wake_at, questions, waiting_topics, lane, due_at, worker, rank: those of the thread, by the
-- head of its log. run_id, graph, started_at, ended_at: those of the run that wrote the head. All are
-- NULL while the thread has no run.
-- lane, due_at, worker: which workers may run it, from when on, and which one has it. rank: the
-- negated priority. waiting_topics: JSON [[topic, number], ...]. limit_key: '~' if there is none, so
-- that these come last.
-- messages: the last number of a message. unread: how many are not consumed.
-- changed: grows with each commit that writes the thread's row.
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
    graph TEXT,
    ended_at INTEGER,
    wake_at INTEGER,
    questions INTEGER,
    lane TEXT,
    due_at INTEGER,
    worker TEXT,
    rank INTEGER,
    waiting_topics TEXT,
    limit_key TEXT,
    messages INTEGER NOT NULL DEFAULT 0,
    unread INTEGER NOT NULL DEFAULT 0,
    sum INTEGER NOT NULL,
    changed INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX threads_by_name ON threads (tenant, thread);
CREATE INDEX threads_by_status ON threads (tenant, status, thread) WHERE status IS NOT NULL;
CREATE INDEX threads_by_change ON threads (tenant, changed, thread) WHERE status IS NOT NULL;
CREATE INDEX threads_by_status_and_change ON threads (tenant, status, changed, thread)
    WHERE status IS NOT NULL;
CREATE INDEX threads_by_wake ON threads (tenant, wake_at, thread) WHERE wake_at IS NOT NULL;
CREATE INDEX threads_by_due ON threads (lane, due_at, tenant, thread)
    WHERE worker = '' AND due_at IS NOT NULL;
CREATE INDEX threads_by_tenant ON threads (lane, tenant, limit_key, rank, due_at, thread)
    WHERE worker = '' AND due_at IS NOT NULL;
CREATE INDEX threads_by_worker ON threads (worker, tenant, thread) WHERE worker <> '';

-- The log. id: thread * 2^32 + seq.
-- checkpoint, parent: 16 bytes. parent is NULL if it is the entry before, empty if there is none.
-- origin: which run, under which fingerprint; see the table of that name.
-- source: 0 input, 1 step, 2 interrupt, 3 update, 4 fork, 5 takeover, 6 answer, 7 sleep.
-- kind: 0 delta, 1 rollup, 2 snapshot. prior: the rollup or snapshot on which a rollup rests.
-- sum: the upper half over all columns but payload, the lower half over payload.
-- payload is last, so that a history never touches the pages that it overflows to.
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

-- owner: JSON, or NULL. number: from 1 without gaps, in the order of recording: a list of runs is
-- complete only if no number is missing. tenant: that of the thread. place: grows with each run of
-- the tenant that is recorded for the first time. An idempotency key (input_digest) is looked up
-- among all runs of a thread.
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
    owner TEXT,
    sum INTEGER NOT NULL,
    number INTEGER,
    tenant TEXT NOT NULL DEFAULT '',
    place INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (thread, run_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX runs_by_number ON runs (thread, number);
CREATE INDEX runs_by_input ON runs (thread, input_digest, number);
CREATE INDEX runs_by_place ON runs (tenant, place, thread, number);
CREATE INDEX runs_by_status_and_place ON runs (tenant, status, place, thread, number);

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

-- Threads are listed by tag. tenant, thread: the name of the thread; id: its number in the index. A
-- thread that is created again has another number.
CREATE TABLE tags (
    tenant TEXT NOT NULL,
    tag TEXT NOT NULL,
    thread TEXT NOT NULL,
    id INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (tenant, tag, thread)
) WITHOUT ROWID;
CREATE INDEX tags_by_thread ON tags (id, tag);

-- Messages to threads. id: thread * 2^32 + number. mark: no two of a thread have the same.
-- consumed: the seq of the entry that consumed the message; then the payload is NULL.
-- A waiting input is a message of the topic __input, with the id of its run as its mark.
CREATE TABLE mailbox (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    mark TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    consumed INTEGER,
    payload BLOB,
    sum INTEGER NOT NULL,
    thread INTEGER GENERATED ALWAYS AS (id >> 32) VIRTUAL
);
CREATE UNIQUE INDEX mailbox_by_mark ON mailbox (thread, mark);
CREATE INDEX mailbox_by_topic ON mailbox (thread, topic, id) WHERE consumed IS NULL;

-- Long-term memory. path: each label of the namespace and a zero byte, so that a prefix of labels is a
-- prefix of bytes. value is opaque; vectors are of four-byte floats, by model; words: JSON. thread and
-- seq wrote it. ttl, expires_at: microseconds.
CREATE TABLE memories (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    path BLOB NOT NULL,
    key TEXT NOT NULL,
    subject TEXT NOT NULL,
    value BLOB NOT NULL,
    words TEXT NOT NULL,
    vectors BLOB NOT NULL,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ttl INTEGER,
    expires_at INTEGER,
    thread TEXT NOT NULL,
    seq INTEGER NOT NULL,
    sum INTEGER NOT NULL
);
CREATE UNIQUE INDEX memories_by_place ON memories (tenant, path, key);
CREATE INDEX memories_by_subject ON memories (tenant, subject);
CREATE INDEX memories_by_end ON memories (tenant, expires_at) WHERE expires_at IS NOT NULL;

-- The words of the items, each once.
CREATE TABLE memory_words (
    tenant TEXT NOT NULL,
    word TEXT NOT NULL,
    path BLOB NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (tenant, word, path, key)
) WITHOUT ROWID;

-- Who is alive. owner, lanes: JSON. silent: after how many microseconds without a heartbeat a worker
-- is gone.
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    beat_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lanes TEXT NOT NULL,
    sum INTEGER NOT NULL,
    silent INTEGER NOT NULL DEFAULT 15000000
) WITHOUT ROWID;

-- What claims must not exceed. Empty: every graph, every tenant. period, begun: microseconds; begun
-- and used are those of the rate. With a key (its name), they hold for each of its values.
CREATE TABLE limits (
    graph TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    concurrency INTEGER,
    rate INTEGER,
    period INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    begun INTEGER NOT NULL,
    used INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (graph, tenant, key)
) WITHOUT ROWID;

-- What is used of rates by key, one row for each value, until its period is over.
CREATE TABLE key_meters (
    graph TEXT NOT NULL,
    tenant TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    begun INTEGER NOT NULL,
    used INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (graph, tenant, limit_key)
) WITHOUT ROWID;
CREATE INDEX key_meters_by_end ON key_meters (until);

-- How much of a resource runs may use: rate units in a period, burst at once. Of a tenant, or of all if
-- that is empty. promised, granted: until when either fills the bucket. Times are in microseconds.
CREATE TABLE buckets (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    rate INTEGER NOT NULL,
    period INTEGER NOT NULL,
    burst INTEGER NOT NULL,
    promised INTEGER NOT NULL,
    granted INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- What was taken from them, by the mark of the taker. granted_at: empty until then.
CREATE TABLE bucket_takes (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    mark TEXT NOT NULL,
    amount INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    granted_at INTEGER,
    sum INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, mark)
) WITHOUT ROWID;
CREATE INDEX bucket_takes_by_time ON bucket_takes (tenant, name, ready_at);
CREATE INDEX bucket_takes_waiting ON bucket_takes (tenant, mark) WHERE granted_at IS NULL;

-- One row. seen: a time that has passed. The system clock may be set back; that of the store does not
-- go back.
CREATE TABLE clock (seen INTEGER NOT NULL);
INSERT INTO clock VALUES (0);

PRAGMA application_id = 1296266100; -- "MCst"
PRAGMA user_version = 1;
