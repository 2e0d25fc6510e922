-- Everything that is due in some lanes, given to a worker, unless it is more than asked for or limits
-- cover it. As in take.sql, nobody waits.
due AS MATERIALIZED (
    SELECT found.place, found.shard
    FROM unnest(%(lanes)s::text[]) AS asked (lane), LATERAL (
        SELECT ctid AS place, shard
        FROM {schema}.threads
        WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
            AND due_at <= (SELECT now FROM present) AND {here}
        ORDER BY due_at
        LIMIT %(limit)s::bigint + 1
        FOR UPDATE SKIP LOCKED
    ) AS found
), locked AS MATERIALIZED (
    SELECT place, shard
    FROM due
    WHERE (SELECT count(*) FROM due) <= %(limit)s::bigint
        AND NOT EXISTS (
            SELECT FROM {schema}.limits WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
        )
)
