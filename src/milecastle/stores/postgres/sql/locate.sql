-- The seq of a checkpoint, by the time that its id tells. Entries stand in the order of their
-- times unless a clock went back, so halving finds the place, and only what stands near it is
-- looked at. Nothing found here says nothing: see locate_anywhere.sql. OFFSET keeps a planner
-- without statistics from looking for each middle among all entries.
WITH RECURSIVE head AS (
    SELECT seq, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND {readable}
    ORDER BY seq DESC
    LIMIT 1
), halves AS (
    SELECT
        (
            SELECT min(entry.seq)
            FROM {schema}.entries AS entry
            WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s
                AND entry.thread = %(thread)s AND entry.seq > head.life
        ) AS low,
        head.seq AS high
    FROM head
    UNION ALL
    SELECT
        CASE WHEN middle.created_at < %(time)s THEN middle.seq + 1 ELSE halves.low END,
        CASE WHEN middle.created_at < %(time)s THEN halves.high ELSE middle.seq END
    FROM halves, LATERAL (
        SELECT entry.seq, entry.created_at
        FROM {schema}.entries AS entry
        WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s
            AND entry.thread = %(thread)s AND entry.seq = (halves.low + halves.high) / 2
        OFFSET 0
    ) AS middle
    WHERE halves.high > halves.low
)
SELECT entry.seq & 4294967295
FROM {schema}.entries AS entry
WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
    AND entry.seq > (SELECT life FROM head)
    AND entry.seq >= (SELECT max(low) FROM halves) - 64
    AND entry.seq <= (SELECT max(low) FROM halves) + 64
    AND entry.id = %(id)s
ORDER BY entry.seq
LIMIT 1
