-- A step: one row, if the head is where the writer believes it to be. The primary key decides
-- between two who believe the same. No seq is below what people call it, so that the lower bound
-- changes nothing; it keeps the index from collecting a whole page of older entries.
--
-- Parameters by number, which psycopg need not look up by name: shard 1, tenant 2, thread 3,
-- head 4, kind 5, step 6, base_seq 7, roll_seq 8, created_at 9, id 10, parent_id 11, run_id 12,
-- fingerprint 13, source 14, nodes 15, next 16, route 17, note 18, payload 19.
INSERT INTO {schema}.entries (
    shard, tenant, thread, kind, seq, origin, settled, step, base_seq, roll_seq, created_at,
    id, parent_id, run_id, fingerprint, source, nodes, next, route, note, payload
)
SELECT
    $1, $2, $3, $5, head.seq + 1, head.origin,
    CASE WHEN $14 = 'takeover' THEN head.settled ELSE head.seq + 1 END,
    $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19
FROM (
    SELECT seq, origin, settled
    FROM {schema}.entries
    WHERE shard = $1 AND tenant = $2 AND thread = $3 AND seq >= $4
    ORDER BY seq DESC
    LIMIT 1
) AS head
WHERE head.seq - head.origin = $4
