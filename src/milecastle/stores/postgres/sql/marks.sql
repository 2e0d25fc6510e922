-- The last number of a thread's messages, and those that are consumed.
SELECT line.last_message, message.number, message.mark, message.consumed & 4294967295
FROM {schema}.threads AS line
LEFT JOIN {schema}.mailbox AS message
    ON message.tenant = line.tenant AND message.thread = line.thread
        AND message.consumed IS NOT NULL
WHERE line.tenant = %(tenant)s AND line.thread = %(thread)s AND line.run_id IS NOT NULL
    AND {readable}
ORDER BY message.number
