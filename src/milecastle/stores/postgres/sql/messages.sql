, line AS MATERIALIZED (
    SELECT known.tenant
    FROM unnest($2, $3) WITH ORDINALITY AS batch (tenant, thread, number)
    JOIN {schema}.threads AS known USING (tenant, thread)
    WHERE batch.number = ANY ($40)
    ORDER BY batch.number
    FOR NO KEY UPDATE OF known
), found AS MATERIALIZED (
    SELECT asked.batch, message.at, message.topic
    FROM unnest($40, $41) AS asked (batch, number)
    JOIN unnest($2, $3) WITH ORDINALITY AS batch (tenant, thread, place)
        ON batch.place = asked.batch,
    LATERAL (
        SELECT ctid AS at, topic
        FROM {schema}.mailbox
        WHERE tenant = batch.tenant AND thread = batch.thread AND number = asked.number
            AND consumed IS NULL AND (SELECT count(*) FROM line) >= 0
        LIMIT 1
        FOR UPDATE
    ) AS message
)
