-- The log, the thread index, the records beside it.
--
-- No foreign keys: nothing cascades over history. Keys of hot rows begin with the shard. Text is
-- compared byte by byte, which in UTF-8 is code point by code point. Fixed widths come first, so
-- that no byte is lost to alignment, and what most entries have in common is said once: a step
-- costs its update and about 150 bytes more, its part of the index among them.

-- seq is the place in the log and is never used twice, not even after the thread was deleted. Its
-- lower 32 bits are what people call the seq; above them stands the thread's life, which a
-- deletion ends. A deletion leaves two rows of kind 3: one in the place that the next writer
-- would have taken, and one at 0 of the next life, so that the newest row is always the head.
--
-- id: 16 bytes if it is a UUID, see values.py. parent: empty if it is the entry before.
-- origin: the run and the fingerprint, empty if they are those of the entry that told them; told is
-- the seq of that entry, or of the first after it that pruning left.
-- source: input 0, step 1, update 2, fork 3; those that leave a thread where it was are interrupt
-- 8, answer 9, sleep 10, takeover 11; deleted 15. held: how many of these stand here in a row.
-- kind: delta 0, rollup 1, snapshot 2. Names: one as it is, several or strange ones as JSON.
CREATE TABLE {schema}.entries (
    seq bigint NOT NULL,
    created_at bigint NOT NULL,
    step integer NOT NULL,
    base_seq integer NOT NULL,
    roll_seq integer NOT NULL,
    told integer NOT NULL,
    held integer NOT NULL,
    shard smallint NOT NULL,
    kind smallint NOT NULL,
    source smallint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    id bytea NOT NULL,
    parent bytea NOT NULL,
    origin bytea NOT NULL,
    nodes text COLLATE "C" NOT NULL,
    next text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    note text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (shard, tenant, thread, seq)
);
-- Payloads come packed: the server need not try again.
ALTER TABLE {schema}.entries ALTER COLUMN payload SET STORAGE EXTERNAL;

-- One row for each thread that was ever written, changed on transitions only. fence is the seq of
-- the newest transition; who would write a record must be at or above it. The rest is the newest
-- run, and null if there is none.
CREATE TABLE {schema}.threads (
    fence bigint NOT NULL,
    started_at bigint,
    ended_at bigint,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    status text COLLATE "C",
    graph text COLLATE "C",
    PRIMARY KEY (tenant, thread)
);
CREATE INDEX threads_by_status ON {schema}.threads (tenant, status, thread)
    WHERE run_id IS NOT NULL;

-- A run and its failure, if it has one, as JSON. All that belongs to the record is null while only
-- the failure is there.
CREATE TABLE {schema}.runs (
    started_at bigint,
    ended_at bigint,
    wake_at bigint,
    retry_count bigint,
    shard smallint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    graph text COLLATE "C",
    fingerprint text COLLATE "C",
    mode text COLLATE "C",
    status text COLLATE "C",
    previous_run_id text COLLATE "C",
    input_digest text COLLATE "C",
    metadata text COLLATE "C",
    failure text COLLATE "C",
    PRIMARY KEY (shard, tenant, thread, run_id)
);

-- seq is the place of the head under which a result was written; given is what people call it.
-- Of several of one task the one under the newest head counts. A name may be longer than a key
-- may be, so the key has its digest.
CREATE TABLE {schema}.results (
    seq bigint NOT NULL,
    given bigint NOT NULL,
    shard smallint NOT NULL,
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
