, consumed AS (
    -- A planner without statistics expects few messages, and each index to be as good. The order
    -- leads it to mailbox_by_number, the limit to one look-up each, and coalesce away from a scan.
    UPDATE {schema}.mailbox AS message
    SET consumed = head.seq + 1, payload = ''
    FROM head, (
        SELECT number FROM unnest($21) AS each (number) LIMIT cardinality($21)
    ) AS asked, LATERAL (
        SELECT ctid AS place
        FROM {schema}.mailbox
        WHERE tenant = $2 AND thread = $3 AND number >= asked.number AND number <= asked.number
            AND consumed IS NULL AND topic <> {inputs}
        ORDER BY number
        LIMIT 1
    ) AS found
    WHERE message.ctid = found.place AND coalesce(message.consumed, -1) = -1
    RETURNING 1
)