-- The thread's life ends here. One tombstone takes the seq that the next writer would take:
-- whoever was about to append is refused by the key. The other begins the next life: whoever
-- comes later finds a thread that is empty. Against a writer who is always faster, the first one
-- goes up further ahead (gap). Nothing happens unless the head is where it is asked to be, and then
-- no input waits, and no message that the thread waits for. lock_thread.sql comes first, so that none
-- is overlooked. With a life, nothing happens to another one. Messages are deleted before the log
-- ends: append_consumed.sql locks them in this order.
WITH last AS (
    SELECT seq, id
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), awaited AS (
    SELECT FROM {schema}.threads AS line
    WHERE line.tenant = %(tenant)s AND line.thread = %(thread)s
        AND (line.inputs > 0 OR line.lane <> '' AND {has_unread})
), allowed AS (
    SELECT coalesce((SELECT seq FROM last), 0) AS seq
    WHERE (
        %(head)s::bigint IS NULL
        OR coalesce((SELECT seq FROM last), 0) & 4294967295 = %(head)s::bigint
    ) AND (%(head_id)s::bytea IS NULL OR (SELECT id FROM last) = %(head_id)s::bytea)
        AND (
            %(life)s::bigint IS NULL
            OR coalesce((SELECT seq FROM last), 0) >> 32 = %(life)s::bigint
        )
        AND (
            (%(head)s::bigint IS NULL AND %(head_id)s::bytea IS NULL)
            OR NOT EXISTS (SELECT FROM awaited)
        )
        AND {placed}
), living AS (
    SELECT seq FROM allowed WHERE seq & 4294967295 > 0
), gate AS (
    UPDATE {schema}.threads AS known
    SET
        fence = greatest(
            known.fence, (SELECT seq - (seq & 4294967295) + 4294967296 FROM living)
        ),
        run_id = NULL, status = NULL, graph = NULL, started_at = NULL, ended_at = NULL,
        wake_at = NULL, questions = 0, lane = '', due_at = NULL, worker = '', rank = 0,
        inputs = 0, waiting_topics = NULL, limit_key = '~', last_message = 0, unread = 0
    FROM allowed
    WHERE known.tenant = %(tenant)s AND known.thread = %(thread)s
    RETURNING fence
), message AS (
    DELETE FROM {schema}.mailbox AS known
    USING allowed, (SELECT count(*) FROM gate) AS passed
    WHERE known.tenant = %(tenant)s AND known.thread = %(thread)s
    RETURNING 1
), tombstone AS (
    INSERT INTO {schema}.entries (
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id, parent, origin, nodes, next, route, note, payload
    )
    SELECT
        %(shard)s, %(tenant)s, %(thread)s, place.seq, 3, 0, 0, 0,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 15, 0, 0,
        '', '', '', '', '', '', '', ''
    FROM living, (SELECT count(*) FROM message) AS passed, LATERAL (
        VALUES (seq + %(gap)s), (seq - (seq & 4294967295) + 4294967296)
    ) AS place (seq)
    RETURNING seq
)
SELECT
    (SELECT count(*) FROM tombstone), (SELECT count(*) FROM allowed), EXISTS (SELECT FROM awaited)
