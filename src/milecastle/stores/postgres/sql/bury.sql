-- The thread ends here. The tombstone takes the seq that the next writer would take: whoever was
-- about to append is refused by the key, and whoever comes later finds a thread that is empty.
-- Against a writer who is always faster, the tombstone goes up further ahead (gap).
WITH last AS (
    SELECT seq, origin
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), living AS (
    SELECT seq FROM last WHERE seq > origin
), gate AS (
    UPDATE {schema}.threads AS known
    SET
        fence = greatest(known.fence, (SELECT seq + %(gap)s FROM living)),
        run_id = NULL, status = NULL, graph = NULL, started_at = NULL, ended_at = NULL
    WHERE known.shard = %(shard)s AND known.tenant = %(tenant)s AND known.thread = %(thread)s
    RETURNING fence
), tombstone AS (
    INSERT INTO {schema}.entries (
        shard, kind, seq, origin, settled, step, base_seq, roll_seq, created_at, tenant, thread,
        id, parent_id, run_id, fingerprint, source, nodes, next, route, note, payload
    )
    SELECT
        %(shard)s, 3, living.seq + %(gap)s, living.seq + %(gap)s, living.seq + %(gap)s, 0, 0, 0,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, %(tenant)s, %(thread)s,
        '', NULL, '', '', 'deleted', '[]', '[]', '[]', '', ''
    FROM living, (SELECT count(*) FROM gate) AS passed
    RETURNING seq
)
SELECT count(*) FROM tombstone
