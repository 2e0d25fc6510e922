-- A message that is consumed at the head, by nobody. The row of the thread comes first, as
-- everywhere: of two who need both, the second waits for the row. It is written: see move_changed.sql.
WITH line AS MATERIALIZED (
    SELECT tenant, thread
    FROM {schema}.threads
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND {placed}
    FOR NO KEY UPDATE
), discarded AS (
    UPDATE {schema}.mailbox AS message
    SET
        payload = '',
        consumed = coalesce((
            SELECT max(seq)
            FROM {schema}.entries
            WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        ), 0)
    FROM line
    WHERE message.tenant = line.tenant AND message.thread = line.thread
        AND message.number = %(number)s AND message.consumed IS NULL
    RETURNING topic
)
UPDATE {schema}.threads
SET
    unread = unread - 1,
    inputs = inputs - (SELECT count(*) FROM discarded WHERE topic = {inputs})::integer
WHERE tenant = %(tenant)s AND thread = %(thread)s AND EXISTS (SELECT FROM discarded)
RETURNING 1
