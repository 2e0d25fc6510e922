-- Long-term memory. path: each label of the namespace and a zero byte, so that a prefix of labels is
-- a prefix of bytes. value is opaque; vectors are of four-byte floats, by model. thread and seq wrote
-- it. ttl, expires_at: microseconds.
CREATE TABLE {schema}.memories (
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    ttl bigint,
    expires_at bigint,
    seq bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    path bytea NOT NULL,
    key text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    words text[] COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    vectors bytea NOT NULL,
    PRIMARY KEY (tenant, path, key)
);
ALTER TABLE {schema}.memories
    ALTER COLUMN value SET STORAGE EXTERNAL, ALTER COLUMN vectors SET STORAGE EXTERNAL;
CREATE INDEX memories_by_word ON {schema}.memories USING gin (words);
CREATE INDEX memories_by_subject ON {schema}.memories (tenant, subject);
CREATE INDEX memories_by_end ON {schema}.memories (tenant, expires_at)
    WHERE expires_at IS NOT NULL;
