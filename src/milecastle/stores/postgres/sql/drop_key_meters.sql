-- Remove meters whose period is over, found by their index. One that gets a longer period meanwhile
-- is another row version, and stays.
DELETE FROM {schema}.key_meters
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM {schema}.key_meters
    WHERE until <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    ORDER BY until
    LIMIT 1000
))
RETURNING 1
