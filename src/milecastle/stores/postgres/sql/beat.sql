INSERT INTO {schema}.workers (id, beat_at, started_at, capacity, draining, owner, lanes, silent)
VALUES (
    %(id)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, %(started_at)s,
    %(capacity)s, %(draining)s, %(owner)s, %(lanes)s, %(silent)s
)
ON CONFLICT (id) DO UPDATE SET
    beat_at = excluded.beat_at,
    started_at = excluded.started_at,
    capacity = excluded.capacity,
    draining = excluded.draining,
    owner = excluded.owner,
    lanes = excluded.lanes,
    silent = excluded.silent
RETURNING 1
