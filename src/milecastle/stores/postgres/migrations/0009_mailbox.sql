-- Messages to threads, in the order of their numbers. A consumed message has no payload; its row
-- remembers its mark until the thread is pruned. consumed: the seq of the entry that consumed it.
CREATE TABLE {schema}.mailbox (
    number bigint NOT NULL,
    sent_at bigint NOT NULL,
    consumed bigint,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    mark text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (tenant, thread, mark)
);
CREATE UNIQUE INDEX mailbox_by_number ON {schema}.mailbox (tenant, thread, number)
    WHERE consumed IS NULL;
CREATE INDEX mailbox_by_topic ON {schema}.mailbox (tenant, thread, topic, number)
    WHERE consumed IS NULL;

-- waiting_topics: [[topic, number], ...]. last_message: the last number assigned. unread: at most
-- this many messages are unread; it is counted again only when it reaches the limit, so a step that
-- consumes messages does not write the row.
ALTER TABLE {schema}.threads
    ADD COLUMN waiting_topics jsonb,
    ADD COLUMN last_message bigint NOT NULL DEFAULT 0,
    ADD COLUMN unread bigint NOT NULL DEFAULT 0;
