EXISTS (
    SELECT FROM jsonb_array_elements(line.waiting_topics) AS awaited
    WHERE (
        SELECT true
        FROM {schema}.mailbox AS message
        WHERE message.tenant = line.tenant AND message.thread = line.thread
            AND message.topic = awaited ->> 0 AND message.number > (awaited ->> 1)::bigint
            AND message.consumed IS NULL
        LIMIT 1
    )
)
