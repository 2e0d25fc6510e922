, consumed AS (
    UPDATE {schema}.mailbox AS message
    SET consumed = passed.seq + passed.count, payload = ''
    FROM passed
    WHERE message.ctid = ANY (ARRAY(SELECT at FROM found))
        AND message.tenant = passed.tenant AND message.thread = passed.thread
)
