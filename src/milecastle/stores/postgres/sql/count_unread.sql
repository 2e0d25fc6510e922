-- How many messages of a thread are unread. lock_thread.sql comes first, so that none is overlooked;
-- those that are consumed meanwhile count.
UPDATE {schema}.threads AS line
SET unread = (
    SELECT count(*)
    FROM {schema}.mailbox AS message
    WHERE message.tenant = line.tenant AND message.thread = line.thread
        AND message.consumed IS NULL
)
WHERE tenant = %(tenant)s AND thread = %(thread)s AND run_id IS NOT NULL AND {placed}
RETURNING unread
