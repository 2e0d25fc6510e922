-- One migrates at a time; the lock ends with the transaction. So the versions need no index.
SELECT pg_advisory_xact_lock(hashtextextended('milecastle', 0));
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.format (
    version integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
