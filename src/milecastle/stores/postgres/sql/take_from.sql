-- Some threads of a worker become due. A row that somebody else is writing is left out: a commit
-- there ends the claim.
WITH locked AS MATERIALIZED (
    SELECT ctid AS place, shard
    FROM {schema}.threads
    WHERE worker = %(worker)s AND worker <> '' AND {here}
    ORDER BY tenant, thread
    LIMIT %(limit)s::bigint
    FOR UPDATE SKIP LOCKED
), {allowed}, given AS (
    UPDATE {schema}.threads AS known
    SET worker = '', due_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    WHERE known.ctid = ANY (ARRAY(SELECT place FROM allowed))
    RETURNING 1
)
SELECT count(*) FROM given
