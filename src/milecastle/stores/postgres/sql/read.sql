-- The chain of a checkpoint, oldest first, and after it the results that go with the head, all as
-- of one moment. A result has kind -1, its task as the id and its seq as the step.
WITH head AS (
    SELECT seq, origin, settled
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), target AS (
    SELECT entry.seq, entry.origin, entry.base_seq, entry.roll_seq
    FROM head, {schema}.entries AS entry
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq = coalesce(head.origin + %(seq)s::bigint, head.seq)
        AND entry.seq > head.origin
)
SELECT
    entry.kind, entry.seq - entry.origin, entry.id, entry.parent_id, entry.step, entry.source,
    entry.nodes, entry.next, entry.run_id, entry.fingerprint, entry.created_at, entry.base_seq,
    entry.roll_seq, entry.payload, entry.route, entry.note
FROM target, {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.kind > 0
    AND entry.seq > target.origin
    AND entry.seq >= target.origin + target.base_seq
    AND entry.seq <= target.origin + target.roll_seq
UNION ALL
SELECT
    entry.kind, entry.seq - entry.origin, entry.id, entry.parent_id, entry.step, entry.source,
    entry.nodes, entry.next, entry.run_id, entry.fingerprint, entry.created_at, entry.base_seq,
    entry.roll_seq, entry.payload, entry.route, entry.note
FROM target, {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq > target.origin
    AND entry.seq > target.origin + target.roll_seq
    AND entry.seq <= target.seq
UNION ALL
SELECT
    -1, NULL, result.task, NULL, result.given, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    result.payload, NULL, NULL
FROM head, target, {schema}.results AS result
WHERE result.shard = %(shard)s AND result.tenant = %(tenant)s AND result.thread = %(thread)s
    AND target.seq = head.seq
    AND result.seq >= head.settled
ORDER BY 2
