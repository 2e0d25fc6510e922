-- Threads are listed by tag. They are not in a shard: a list is of a tenant, like the index.
CREATE TABLE {schema}.tags (
    tenant text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, tag, thread)
);
CREATE INDEX tags_by_thread ON {schema}.tags (tenant, thread, tag);
