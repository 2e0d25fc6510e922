-- Goes on dropping what is below a cut that was passed; chosen first, as in sweep_entries.sql.
WITH gone AS (
    DELETE FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s AND {placed}
        AND seq = ANY (ARRAY(
            SELECT seq
            FROM {schema}.entries
            WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
                AND seq > %(life)s::bigint
                AND seq < %(life)s::bigint + %(cut)s::bigint
            ORDER BY seq DESC
            LIMIT %(limit)s
        ))
    RETURNING 1
), forgotten AS (
    DELETE FROM {schema}.mailbox
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND {placed}
        AND mark = ANY (ARRAY(
            SELECT mark
            FROM {schema}.mailbox
            WHERE tenant = %(tenant)s AND thread = %(thread)s
                AND consumed < %(life)s::bigint + %(cut)s::bigint
            LIMIT %(limit)s
        ))
    RETURNING 1
), touched AS ( -- see move_changed.sql
    UPDATE {schema}.threads
    SET fence = fence
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND (EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM forgotten))
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM forgotten)
