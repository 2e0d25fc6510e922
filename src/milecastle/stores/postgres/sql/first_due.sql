-- When the first threads of some groups were due: so many of each, with the number of the group.
SELECT asked.number, found.due_at
FROM unnest(
    %(lanes)s::text[], %(tenants)s::text[], %(limit_keys)s::text[], %(ranks)s::integer[],
    %(counts)s::bigint[]
) WITH ORDINALITY AS asked (lane, tenant, limit_key, rank, count, number), LATERAL (
    SELECT due_at
    FROM {schema}.threads
    WHERE lane = asked.lane AND tenant = asked.tenant AND limit_key = asked.limit_key
        AND rank = asked.rank
        AND worker = '' AND due_at IS NOT NULL AND {here}
        AND due_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    ORDER BY due_at
    LIMIT asked.count
) AS found
