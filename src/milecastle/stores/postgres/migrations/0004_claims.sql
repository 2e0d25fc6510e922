-- Workers share threads: the index says which may run a thread, from when on, and which one has it.
-- rank: the negated priority.
ALTER TABLE {schema}.threads
    ADD COLUMN lane text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN due_at bigint,
    ADD COLUMN worker text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN rank integer NOT NULL DEFAULT 0,
    ADD COLUMN inputs integer NOT NULL DEFAULT 0;
CREATE INDEX threads_by_due ON {schema}.threads (lane, due_at)
    WHERE worker = '' AND due_at IS NOT NULL;
CREATE INDEX threads_by_tenant ON {schema}.threads (lane, tenant, rank, due_at)
    WHERE worker = '' AND due_at IS NOT NULL;
CREATE INDEX threads_by_worker ON {schema}.threads (worker, tenant, thread)
    WHERE worker <> '';

-- Inputs that wait until their thread is free, in the order of their numbers; threads.inputs is how
-- many they are. mark: no two of a thread have the same.
CREATE TABLE {schema}.inputs (
    number bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    mark text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (tenant, thread, number),
    UNIQUE (tenant, thread, mark)
);

-- Who is alive, by the clock of the server. owner, lanes: JSON. Room in each page, so that a beat
-- writes its row where it was.
CREATE TABLE {schema}.workers (
    beat_at bigint NOT NULL,
    started_at bigint NOT NULL,
    capacity bigint NOT NULL,
    draining boolean NOT NULL,
    id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    lanes text COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
) WITH (fillfactor = 50);

-- What claims must not exceed. Empty: every graph, every tenant. period, begun: microseconds; begun
-- and used are those of the rate.
CREATE TABLE {schema}.limits (
    period bigint NOT NULL,
    begun bigint NOT NULL DEFAULT 0,
    used integer NOT NULL DEFAULT 0,
    concurrency integer,
    rate integer,
    paused boolean NOT NULL,
    graph text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (graph, tenant)
) WITH (fillfactor = 50);

-- For autoscalers and dashboards: what waits for a worker now, and what has one. It shows what its
-- reader may see: with row-level security, one tenant.
CREATE VIEW {schema}.queue WITH (security_invoker = true) AS
SELECT
    graph, tenant,
    count(*) FILTER (WHERE worker = '') AS queued,
    count(*) FILTER (WHERE worker <> '') AS running,
    coalesce(max(age) FILTER (WHERE worker = ''), 0)::double precision AS oldest_seconds
FROM (
    SELECT graph, tenant, worker, extract(epoch FROM statement_timestamp()) - due_at / 1e6 AS age
    FROM {schema}.threads
    WHERE worker = '' AND due_at IS NOT NULL AND lane <> ''
        AND due_at <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    UNION ALL
    SELECT graph, tenant, worker, 0
    FROM {schema}.threads
    WHERE worker <> '' AND lane <> ''
) AS waiting
GROUP BY graph, tenant;
