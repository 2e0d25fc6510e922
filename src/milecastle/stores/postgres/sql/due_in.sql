SELECT min(first.due_at) - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM unnest(%(lanes)s::text[]) AS asked (lane), LATERAL (
    SELECT due_at
    FROM {schema}.threads
    WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL AND {here}
    ORDER BY due_at
    LIMIT 1
) AS first
