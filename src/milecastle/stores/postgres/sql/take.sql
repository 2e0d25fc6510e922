-- So many due threads of each group, given to a worker: those that were due first, of which nobody
-- else is writing. Nobody waits here, and a worker that meets another takes what comes behind.
-- Ranks are compared with times: by an equation of ranks the planner may take the index by time, and
-- read past all that others have due. The last limit repeats the first: so no plan depends on how
-- many the planner expects, and none looks so expensive that the server would compile it.
locked AS MATERIALIZED (
    SELECT found.place, found.shard
    FROM unnest(
        %(lanes)s::text[], %(tenants)s::text[], %(limit_keys)s::text[], %(ranks)s::integer[],
        %(counts)s::bigint[]
    ) AS asked (lane, tenant, limit_key, rank, count), LATERAL (
        SELECT ctid AS place, shard
        FROM {schema}.threads
        WHERE lane = asked.lane AND tenant = asked.tenant AND limit_key = asked.limit_key
            AND worker = '' AND due_at IS NOT NULL AND {here}
            AND (rank, due_at) >= (asked.rank, 0)
            AND (rank, due_at) <= (asked.rank, (SELECT now FROM present))
            AND (%(until)s::bigint IS NULL OR (SELECT now FROM present) <= %(until)s::bigint)
        ORDER BY rank, due_at
        LIMIT asked.count
        FOR UPDATE SKIP LOCKED
    ) AS found
    LIMIT %(limit)s::bigint
)
