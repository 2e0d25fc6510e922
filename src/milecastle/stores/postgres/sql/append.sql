-- A step: one row, if the head is where the writer believes it to be. The key decides between two
-- who believe the same. No seq is below what people call it, so that the lower bound changes
-- nothing; it keeps the index from collecting a whole page of older entries.
--
-- Parameters by number and in binary: shard 1, tenant 2, thread 3, head 4, kind 5, step 6,
-- base_seq 7, roll_seq 8, created_at 9, source 10, id 11, parent 12, origin 13, nodes 14, next 15,
-- route 16, note 17, payload 18; 19 whether the parent, if that is the head, has this origin; the
-- id of the head 20, empty if the writer does not know it.
-- If the step consumes messages, append_consumed.sql follows the head: their numbers 21. They are
-- consumed before the entry is written, as in bury.sql. If one of them is not unread, the seq is that
-- of the head (append_place.sql), which the key refuses.
-- If the step puts items of long-term memory, they are written if it is (append_memory.sql).
WITH head AS (
    SELECT newest.*
    FROM (
        SELECT seq, id, held, told
        FROM {schema}.entries
        WHERE shard = $1 AND tenant = $2 AND thread = $3 AND seq >= $4
        ORDER BY seq DESC
        LIMIT 1
    ) AS newest
    WHERE newest.seq & 4294967295 = $4 AND ($20 = '' OR newest.id = $20) AND {placed}
){consumed}{step}
INSERT INTO {schema}.entries (
    shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
    held, told, id, parent, origin, nodes, next, route, note, payload
)
SELECT
    $1, $2, $3, head.seq + {place}, $5, $6, $7, $8, $9, $10,
    CASE WHEN $10 >= 8 THEN head.held + 1 ELSE 0 END,
    CASE WHEN $19 AND head.id = $12 THEN head.told ELSE $4 + 1 END,
    $11,
    CASE WHEN head.id = $12 THEN '' ELSE $12 END,
    CASE WHEN $19 AND head.id = $12 THEN '' ELSE $13 END,
    $14, $15, $16, $17, $18
FROM head{memory}
