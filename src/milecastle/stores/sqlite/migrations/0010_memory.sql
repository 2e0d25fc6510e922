-- Long-term memory. path: each label of the namespace and a zero byte, so that a prefix of labels is a
-- prefix of bytes. value is opaque; vectors are of four-byte floats, by model; words: JSON. thread and
-- seq wrote it. ttl, expires_at: microseconds.
CREATE TABLE memories (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    path BLOB NOT NULL,
    key TEXT NOT NULL,
    subject TEXT NOT NULL,
    value BLOB NOT NULL,
    words TEXT NOT NULL,
    vectors BLOB NOT NULL,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ttl INTEGER,
    expires_at INTEGER,
    thread TEXT NOT NULL,
    seq INTEGER NOT NULL,
    sum INTEGER NOT NULL
);
CREATE UNIQUE INDEX memories_by_place ON memories (tenant, path, key);
CREATE INDEX memories_by_subject ON memories (tenant, subject);
CREATE INDEX memories_by_end ON memories (tenant, expires_at) WHERE expires_at IS NOT NULL;

-- The words of the items, each once.
CREATE TABLE memory_words (
    tenant TEXT NOT NULL,
    word TEXT NOT NULL,
    path BLOB NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (tenant, word, path, key)
) WITHOUT ROWID;

PRAGMA user_version = 10;
