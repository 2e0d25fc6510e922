-- A waiting input is a message of the topic __input, with the id of its run as its mark;
-- threads.inputs is how many of a thread's are not consumed. The owner must see every row: with
-- row-level security, secure.sql follows.
ALTER TABLE {schema}.inputs NO FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.threads NO FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.mailbox NO FORCE ROW LEVEL SECURITY;
INSERT INTO {schema}.mailbox (number, sent_at, tenant, thread, topic, mark, payload)
SELECT
    line.last_message
        + row_number() OVER (PARTITION BY line.tenant, line.thread ORDER BY input.number),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    line.tenant, line.thread, '__input', input.run_id, input.payload
FROM {schema}.inputs AS input JOIN {schema}.threads AS line USING (tenant, thread);
UPDATE {schema}.threads AS line
SET
    last_message = line.last_message + counted.inputs,
    unread = line.unread + counted.inputs
FROM (
    SELECT tenant, thread, count(*) AS inputs FROM {schema}.inputs GROUP BY tenant, thread
) AS counted
WHERE line.tenant = counted.tenant AND line.thread = counted.thread;
DROP TABLE {schema}.inputs;
