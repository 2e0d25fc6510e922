-- Steps of many threads, each thread once: as append.sql for each of them. What it returns was
-- written; a thread that is missing was refused.
--
-- Parameters by number and in binary, a list each, in the order of append.sql.
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
FROM unnest(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
    $19, $20
) AS given (
    shard, tenant, thread, head, kind, step, base_seq, roll_seq, created_at, source, id, parent,
    origin, nodes, next, route, note, payload, same, head_id
), LATERAL (
    SELECT seq, id, held, told
    FROM {schema}.entries
    WHERE shard = given.shard AND tenant = given.tenant AND thread = given.thread
        AND seq >= given.head
    ORDER BY seq DESC
    LIMIT 1
) AS head
WHERE head.seq & 4294967295 = given.head
    AND (given.head_id = '' OR head.id = given.head_id)
    AND {placed}
ON CONFLICT (shard, tenant, thread, seq) DO NOTHING
RETURNING tenant, thread
