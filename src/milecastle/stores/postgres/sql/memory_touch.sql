UPDATE {schema}.memories AS item
SET expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + item.ttl
FROM unnest(%(paths)s::bytea[], %(keys)s::text[]) AS asked (path, key)
WHERE item.tenant = %(tenant)s AND item.path = asked.path AND item.key = asked.key
    AND item.ttl IS NOT NULL AND {live}
RETURNING 1
