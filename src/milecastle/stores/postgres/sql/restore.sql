-- The row of a thread whose mailbox was restored: it is due as after ``send``.
UPDATE {schema}.threads AS line
SET
    last_message = greatest(line.last_message, %(last)s::bigint),
    unread = (
        SELECT count(*)
        FROM {schema}.mailbox AS message
        WHERE message.tenant = line.tenant AND message.thread = line.thread
            AND message.consumed IS NULL
    ),
    inputs = counted.inputs,
    due_at = CASE
        WHEN counted.inputs > 0 AND line.worker = '' AND line.lane <> '' AND line.due_at IS NULL
        THEN CASE
            WHEN line.status IN ('completed', 'cancelled')
            THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
            ELSE line.wake_at
        END
        WHEN line.worker = '' AND line.lane <> '' AND {has_unread}
        THEN least(line.due_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        ELSE line.due_at
    END
FROM (
    SELECT count(*)::integer AS inputs
    FROM {schema}.mailbox
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND topic = {inputs} AND consumed IS NULL
) AS counted
WHERE line.tenant = %(tenant)s AND line.thread = %(thread)s AND line.run_id IS NOT NULL
    AND {placed}
RETURNING 1
