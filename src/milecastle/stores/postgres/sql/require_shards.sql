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
