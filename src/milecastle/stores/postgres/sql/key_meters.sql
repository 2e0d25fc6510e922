-- What some values have used of rates by key that concern some graphs.
SELECT
    known.graph, known.tenant, known.key, known.concurrency, known.rate, known.period,
    known.paused, meter.begun, meter.used, meter.limit_key
FROM {schema}.limits AS known, unnest(%(limit_keys)s::text[]) AS asked (limit_key), LATERAL (
    SELECT begun, used, limit_key
    FROM {schema}.key_meters
    WHERE graph = known.graph AND tenant = known.tenant AND limit_key = asked.limit_key
        AND until > %(now)s::bigint
) AS meter
WHERE (known.graph = '' OR known.graph = ANY (%(graphs)s::text[])) AND known.rate IS NOT NULL
    AND known.key <> '' AND known.key = split_part(asked.limit_key, '=', 1)
