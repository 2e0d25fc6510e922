-- A store that was opened before the database joined does not know of shards: it is refused when it
-- begins or ends a run.
--
-- Lists by recency are merged from all databases of the map, which have no common counter: from now
-- on their numbers are microseconds on the clock of each. These are above all earlier numbers.
ALTER TABLE {schema}.threads
    ALTER COLUMN shard SET NOT NULL,
    ALTER COLUMN changed DROP IDENTITY IF EXISTS,
    ALTER COLUMN changed SET DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
ALTER TABLE {schema}.runs
    ALTER COLUMN place DROP IDENTITY IF EXISTS,
    ALTER COLUMN place SET DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
CREATE INDEX IF NOT EXISTS threads_by_shard ON {schema}.threads (shard, tenant, thread);
-- As in the migrations, without threads of shards that have left or have not arrived yet.
CREATE OR REPLACE VIEW {schema}.queue WITH (security_invoker = true) AS
SELECT
    graph, tenant,
    count(*) FILTER (WHERE worker = '') AS due,
    count(*) FILTER (WHERE worker <> '') AS running,
    coalesce(max(age) FILTER (WHERE worker = ''), 0)::double precision AS oldest_seconds
FROM (
    SELECT
        graph, tenant, worker, shard,
        extract(epoch FROM statement_timestamp()) - due_at / 1e6 AS age
    FROM {schema}.threads
    WHERE worker = '' AND due_at IS NOT NULL AND lane <> ''
        AND due_at <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    UNION ALL
    SELECT graph, tenant, worker, shard, 0
    FROM {schema}.threads
    WHERE worker <> '' AND lane <> ''
) AS waiting
WHERE shard <> ALL (ARRAY(SELECT away.shard FROM {schema}.placements AS away WHERE away.leftovers))
GROUP BY graph, tenant;
