-- A page, newest first. The first one finds where the thread begins and ends; the others go on
-- from there, whatever was written or deleted meanwhile.
WITH head AS (
    SELECT seq, origin
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), page AS (
    SELECT coalesce(%(origin)s::bigint, head.origin) AS origin FROM head
)
SELECT
    entry.kind, entry.seq - entry.origin, entry.id, entry.parent_id, entry.step, entry.source,
    entry.nodes, entry.next, entry.run_id, entry.fingerprint, entry.created_at, entry.base_seq,
    entry.roll_seq, ''::bytea, entry.route, entry.note, entry.origin
FROM page, {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq > page.origin
    AND entry.seq < page.origin + %(before)s::bigint
    AND entry.origin = page.origin
ORDER BY entry.seq DESC
LIMIT %(limit)s
