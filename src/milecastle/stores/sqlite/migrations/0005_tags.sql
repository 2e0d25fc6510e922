-- Threads are listed by tag.

-- tenant, thread: the name of the thread; id: its number in the index. A thread that is created again
-- has another number.
CREATE TABLE tags (
    tenant TEXT NOT NULL,
    tag TEXT NOT NULL,
    thread TEXT NOT NULL,
    id INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (tenant, tag, thread)
) WITHOUT ROWID;
CREATE INDEX tags_by_thread ON tags (id, tag);

PRAGMA user_version = 5;
