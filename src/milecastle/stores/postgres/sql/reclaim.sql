-- Some threads of workers that were silent for too long, or that nobody knows, become due, and the
-- silent ones are forgotten. The time is a whole second: the mark of a lost worker. Each worker that has a thread is looked up once, however many it has.
-- A worker that beats at this moment holds the lock of its row, and is not taken for silent; a row
-- of the index that somebody else is writing is left to the next call.
WITH RECURSIVE present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), named AS (
    (
        SELECT worker FROM {schema}.threads WHERE worker <> '' ORDER BY worker LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT known.worker
        FROM {schema}.threads AS known
        WHERE known.worker > named.worker AND known.worker <> ''
        ORDER BY known.worker
        LIMIT 1
    )
    FROM named
    WHERE named.worker IS NOT NULL
), silent AS MATERIALIZED (
    SELECT id
    FROM {schema}.workers
    WHERE beat_at < (SELECT now FROM present) - coalesce(%(timeout)s::bigint, silent)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM {schema}.workers USING silent WHERE workers.id = silent.id
), gone AS (
    SELECT named.worker
    FROM named
    WHERE named.worker IN (SELECT id FROM silent)
        OR NOT EXISTS (SELECT FROM {schema}.workers WHERE id = named.worker)
), locked AS MATERIALIZED (
    SELECT found.place, found.shard
    FROM gone, LATERAL (
        SELECT ctid AS place, shard
        FROM {schema}.threads
        WHERE worker = gone.worker AND worker <> '' AND {here}
        ORDER BY tenant, thread
        LIMIT %(limit)s::bigint
        FOR UPDATE SKIP LOCKED
    ) AS found
    LIMIT %(limit)s::bigint
), {allowed}, given AS (
    UPDATE {schema}.threads AS known
    SET worker = '', due_at = (SELECT now - mod(now, 1000000) FROM present)
    WHERE known.ctid = ANY (ARRAY(SELECT place FROM allowed))
    RETURNING 1
)
SELECT count(*) FROM given
