-- Some of the entries of former lives, the oldest first; nothing reads them any more. Tombstones
-- stay: their places must not be taken by whoever still believes in an older head.
--
-- What goes is chosen first, into an array: as a join, a planner without statistics would look for
-- each entry among all the chosen.
WITH gone AS (
    DELETE FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s AND {placed}
        AND seq = ANY (ARRAY(
            SELECT seq
            FROM {schema}.entries
            WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
                AND kind < 3
                AND seq < (
                    SELECT seq - (seq & 4294967295)
                    FROM {schema}.entries
                    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
                    ORDER BY seq DESC
                    LIMIT 1
                )
            ORDER BY seq
            LIMIT %(limit)s
        ))
    RETURNING 1
), touched AS ( -- see move_changed.sql
    UPDATE {schema}.threads
    SET fence = fence
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND EXISTS (SELECT FROM gone)
)
SELECT count(*) FROM gone
