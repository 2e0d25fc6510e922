-- Steps of many threads, each thread once, that consume messages: as append_many.sql, and none of a
-- batch if one of its messages is not unread. Messages are locked before the entry is written, as in
-- bury.sql. They are updated where they were locked, whatever the planner expects.
--
-- Parameters by number and in binary: a list each, in the order of append_many.sql; then of each
-- message its batch 21 and its number 22.
WITH given AS MATERIALIZED (
    SELECT *, (
        SELECT count(*) FROM unnest($21) AS message (batch) WHERE message.batch = given.place
    ) AS messages
    FROM unnest(
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
        $19, $20
    ) WITH ORDINALITY AS given (
        shard, tenant, thread, head, kind, step, base_seq, roll_seq, created_at, source, id,
        parent, origin, nodes, next, route, note, payload, same, head_id, place
    )
), found AS MATERIALIZED (
    SELECT given.tenant, given.thread, message.at
    FROM unnest($21, $22) AS asked (batch, number) JOIN given ON given.place = asked.batch,
    LATERAL (
        SELECT ctid AS at
        FROM {schema}.mailbox
        WHERE tenant = given.tenant AND thread = given.thread AND number = asked.number
            AND consumed IS NULL
        LIMIT 1
        FOR UPDATE
    ) AS message
), kept AS (
    INSERT INTO {schema}.entries (
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id, parent, origin, nodes, next, route, note, payload
    )
    SELECT
        given.shard, given.tenant, given.thread, head.seq + 1, given.kind, given.step,
        given.base_seq, given.roll_seq, given.created_at, given.source,
        CASE WHEN given.source >= 8 THEN head.held + 1 ELSE 0 END,
        CASE WHEN given.same AND head.id = given.parent THEN head.told ELSE given.head + 1 END,
        given.id,
        CASE WHEN head.id = given.parent THEN '' ELSE given.parent END,
        CASE WHEN given.same AND head.id = given.parent THEN '' ELSE given.origin END,
        given.nodes, given.next, given.route, given.note, given.payload
    FROM given, LATERAL (
        SELECT seq, id, held, told
        FROM {schema}.entries
        WHERE shard = given.shard AND tenant = given.tenant AND thread = given.thread
            AND seq >= given.head
        ORDER BY seq DESC
        LIMIT 1
    ) AS head
    WHERE head.seq & 4294967295 = given.head
        AND (given.head_id = '' OR head.id = given.head_id)
        AND given.messages = (
            SELECT count(*)
            FROM found
            WHERE found.tenant = given.tenant AND found.thread = given.thread
        )
        AND {placed}
    ON CONFLICT (shard, tenant, thread, seq) DO NOTHING
    RETURNING tenant, thread, seq
), consumed AS (
    UPDATE {schema}.mailbox AS message
    SET consumed = kept.seq, payload = ''
    FROM kept
    WHERE message.ctid = ANY (ARRAY(SELECT at FROM found))
        AND message.tenant = kept.tenant AND message.thread = kept.thread
)
SELECT tenant, thread FROM kept
