-- When the first threads of some groups were due: so many of each, with the number of the group.
-- Compared as in take.sql.
SELECT asked.number, found.due_at
FROM unnest(
    %(lanes)s::text[], %(tenants)s::text[], %(limit_keys)s::text[], %(ranks)s::integer[],
    %(counts)s::bigint[]
) WITH ORDINALITY AS asked (lane, tenant, limit_key, rank, count, number), LATERAL (
    SELECT due_at
    FROM {schema}.threads
    WHERE lane = asked.lane AND tenant = asked.tenant AND limit_key = asked.limit_key
        AND worker = '' AND due_at IS NOT NULL AND {here}
        AND (rank, due_at) >= (asked.rank, 0)
        AND (rank, due_at)
            <= (asked.rank, (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
    ORDER BY rank, due_at
    LIMIT asked.count
) AS found
