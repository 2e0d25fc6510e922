-- A step that consumes messages: as append.sql, and nothing if one of them is not unread. Messages
-- are locked before the entry is written, as in bury.sql, and updated where they were locked. The key
-- decides between two writers without an error, which would undo a group. The SELECT in unnest hides
-- the length of the list from the planner, which would otherwise make a new plan each time.
--
-- Parameters by number and in binary: as append.sql; then the numbers of the messages 21.
WITH found AS MATERIALIZED (
    SELECT message.place
    FROM unnest((SELECT $21)) AS asked (number), LATERAL (
        SELECT ctid AS place
        FROM {schema}.mailbox
        WHERE tenant = $2 AND thread = $3 AND number = asked.number AND consumed IS NULL
        LIMIT 1
        FOR UPDATE
    ) AS message
), kept AS (
    INSERT INTO {schema}.entries (
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id, parent, origin, nodes, next, route, note, payload
    )
    SELECT
        $1, $2, $3, head.seq + 1, $5, $6, $7, $8, $9, $10,
        CASE WHEN $10 >= 8 THEN head.held + 1 ELSE 0 END,
        CASE WHEN $19 AND head.id = $12 THEN head.told ELSE $4 + 1 END,
        $11,
        CASE WHEN head.id = $12 THEN '' ELSE $12 END,
        CASE WHEN $19 AND head.id = $12 THEN '' ELSE $13 END,
        $14, $15, $16, $17, $18
    FROM (
        SELECT seq, id, held, told
        FROM {schema}.entries
        WHERE shard = $1 AND tenant = $2 AND thread = $3 AND seq >= $4
        ORDER BY seq DESC
        LIMIT 1
    ) AS head
    WHERE head.seq & 4294967295 = $4 AND ($20 = '' OR head.id = $20)
        AND (SELECT count(*) FROM found) = cardinality($21) AND {placed}
    ON CONFLICT (shard, tenant, thread, seq) DO NOTHING
    RETURNING seq
), consumed AS (
    UPDATE {schema}.mailbox
    SET consumed = (SELECT seq FROM kept), payload = ''
    WHERE ctid = ANY (ARRAY(SELECT place FROM found WHERE EXISTS (SELECT FROM kept)))
)
SELECT seq FROM kept
