DELETE FROM {schema}.key_meters
WHERE until <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
RETURNING 1
