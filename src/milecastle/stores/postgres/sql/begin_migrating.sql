-- One migrates at a time; the lock ends with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('milecastle', 0));
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
