-- The log, the thread index, the records beside it.
--
-- No foreign keys: nothing cascades over history. Keys of hot rows begin with the shard. Text is
-- compared byte by byte, which in UTF-8 is code point by code point. Fixed widths come first, so
-- that no byte is lost to alignment.

-- seq is the place in the log and is never used twice, not even after the thread was deleted:
-- what people call the seq is seq - origin. A deletion is a row of kind 3 whose origin is its own
-- seq. settled is the newest entry, up to this one, that is not a takeover.
CREATE TABLE {schema}.entries (
    shard smallint NOT NULL,
    kind smallint NOT NULL,
    seq bigint NOT NULL,
    origin bigint NOT NULL,
    settled bigint NOT NULL,
    step bigint NOT NULL,
    base_seq bigint NOT NULL,
    roll_seq bigint NOT NULL,
    created_at bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C",
    run_id text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    nodes text COLLATE "C" NOT NULL,
    next text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    note text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (shard, tenant, thread, seq)
);
-- Payloads come packed: the server need not try again.
ALTER TABLE {schema}.entries ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX entries_by_id ON {schema}.entries (shard, id);
CREATE INDEX entries_cuts ON {schema}.entries (shard, tenant, thread, seq) WHERE kind > 0;

-- One row for each thread that was ever written, changed on transitions only. fence is the seq of
-- the newest transition; who would write a record must be at or above it. The rest is the newest
-- run, and null if there is none.
CREATE TABLE {schema}.threads (
    shard smallint NOT NULL,
    fence bigint NOT NULL,
    started_at bigint,
    ended_at bigint,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    status text COLLATE "C",
    graph text COLLATE "C",
    PRIMARY KEY (shard, tenant, thread)
);
CREATE INDEX threads_by_name ON {schema}.threads (tenant, thread) WHERE run_id IS NOT NULL;
CREATE INDEX threads_by_status ON {schema}.threads (tenant, status, thread)
    WHERE run_id IS NOT NULL;

CREATE TABLE {schema}.runs (
    shard smallint NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint,
    retry_count bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    graph text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    mode text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    previous_run_id text COLLATE "C",
    input_digest text COLLATE "C" NOT NULL,
    metadata text COLLATE "C" NOT NULL,
    PRIMARY KEY (shard, tenant, thread, run_id)
);
CREATE INDEX runs_by_start ON {schema}.runs (shard, tenant, thread, started_at, run_id);

CREATE TABLE {schema}.failures (
    shard smallint NOT NULL,
    resumable boolean NOT NULL,
    attempt bigint NOT NULL,
    time bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    failure_class text COLLATE "C" NOT NULL,
    error_type text COLLATE "C" NOT NULL,
    message text COLLATE "C" NOT NULL,
    traceback text COLLATE "C" NOT NULL,
    causes text COLLATE "C" NOT NULL,
    node text COLLATE "C",
    PRIMARY KEY (shard, tenant, thread, run_id)
);

-- seq is the place of the head under which a result was written; given is what people call it.
-- A name may be longer than a key may be, so the key has its digest.
CREATE TABLE {schema}.results (
    shard smallint NOT NULL,
    seq bigint NOT NULL,
    given bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    task text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (shard, tenant, thread, seq, digest)
);
ALTER TABLE {schema}.results ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE {schema}.manifests (
    tenant text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    manifest bytea NOT NULL,
    PRIMARY KEY (tenant, fingerprint)
);
