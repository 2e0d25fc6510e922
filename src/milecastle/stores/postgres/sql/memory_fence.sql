(
    SELECT newest.seq & 4294967295 = $13 AND newest.id = $15
        AND newest.writer = pg_current_xact_id_if_assigned()::xid
    FROM (
        SELECT seq, id, xmin AS writer
        FROM {schema}.entries
        WHERE shard = $14 AND tenant = $1 AND thread = $12 AND seq >= $13
        ORDER BY seq DESC
        LIMIT 1
    ) AS newest
)
