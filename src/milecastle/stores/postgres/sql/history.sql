-- A page, newest first. The first one finds where the thread begins and ends; the others go on
-- from there, whatever was written or deleted meanwhile.
--
-- The bounds are scalars, not a join: only so does the index lead straight to the page.
WITH head AS MATERIALIZED (
    SELECT coalesce(%(origin)s::bigint, origin) AS origin
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
)
SELECT
    entry.kind, entry.seq - entry.origin, entry.id, entry.parent_id, entry.step, entry.source,
    entry.nodes, entry.next, entry.run_id, entry.fingerprint, entry.created_at, entry.base_seq,
    entry.roll_seq, ''::bytea, entry.route, entry.note, entry.origin
FROM {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq > (SELECT origin FROM head)
    AND entry.seq < (SELECT origin FROM head) + %(before)s::bigint
    AND entry.origin = (SELECT origin FROM head)
ORDER BY entry.seq DESC
LIMIT %(limit)s
