-- An idempotency key is looked up among all runs of a thread.
CREATE INDEX runs_by_input ON runs (thread, input_digest, number);

PRAGMA user_version = 7;
