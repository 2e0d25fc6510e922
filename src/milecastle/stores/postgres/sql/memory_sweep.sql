-- The time is compared again once the row is locked: one that was put again stays.
WITH over AS MATERIALIZED (
    SELECT tenant, path, key
    FROM {schema}.memories
    WHERE tenant = %(tenant)s
        AND expires_at <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.memories AS item
USING over
WHERE item.tenant = over.tenant AND item.path = over.path AND item.key = over.key
RETURNING 1
