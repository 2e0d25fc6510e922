-- A page, newest first, and after it what its entries have in common (kind -2). The first page
-- finds where the thread's life begins; the others go on from there, whatever was written or
-- deleted meanwhile.
--
-- The bounds are scalars, not a join: only so does the index lead straight to the page.
WITH head AS MATERIALIZED (
    SELECT coalesce(%(life)s::bigint, seq - (seq & 4294967295)) AS life
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND {readable}
    ORDER BY seq DESC
    LIMIT 1
), page AS MATERIALIZED (
    SELECT
        kind, seq, id, parent, step, source, nodes, next, told, origin, created_at, base_seq,
        roll_seq, route, note, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND seq > (SELECT life FROM head)
        AND seq < (SELECT life FROM head) + %(before)s::bigint
        AND kind < 3
    ORDER BY seq DESC
    LIMIT %(limit)s
)
SELECT
    kind, seq - life, id, coalesce(
        CASE WHEN parent <> '' THEN parent END,
        lag(id) OVER (ORDER BY seq),
        (
            SELECT before.id
            FROM {schema}.entries AS before
            WHERE before.shard = %(shard)s AND before.tenant = %(tenant)s
                AND before.thread = %(thread)s AND before.seq = page.seq - 1
        )
    ), step, source, nodes, next, told, origin, created_at, base_seq, roll_seq, ''::bytea, route,
    note, life
FROM page
UNION ALL
SELECT
    -2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, named.told, teller.origin, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL
FROM (SELECT DISTINCT told, life FROM page) AS named, LATERAL (
    SELECT origin
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND seq >= named.life + named.told
    ORDER BY seq
    LIMIT 1
) AS teller
ORDER BY 2 DESC NULLS LAST
