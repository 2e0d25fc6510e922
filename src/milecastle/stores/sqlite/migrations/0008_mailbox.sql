-- Messages to threads. id: thread << 32 | number. mark: no two of a thread have the same. consumed: the
-- seq of the entry that consumed the message; then the payload is NULL.
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

-- waiting_topics: JSON [[topic, number], ...]. messages: the last number of a message. unread: how many
-- are not consumed. They are under the checksum. A row whose checksum did not match before has -1,
-- which no row matches.
ALTER TABLE threads ADD COLUMN waiting_topics TEXT;
ALTER TABLE threads ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
UPDATE threads SET sum = CASE
    WHEN sum = checksum(
        id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
        wake_at, questions, lane, due_at, worker, rank
    ) THEN checksum(
        id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
        wake_at, questions, lane, due_at, worker, rank, waiting_topics, messages, unread
    )
    ELSE -1
END;

PRAGMA user_version = 8;
