SELECT
    id, owner, lanes, started_at, capacity, draining,
    (SELECT count(*) FROM {schema}.threads WHERE worker = known.id AND worker <> '' AND {here}),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - beat_at, silent
FROM {schema}.workers AS known
ORDER BY id
