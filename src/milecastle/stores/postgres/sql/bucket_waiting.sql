SELECT ready_at, name, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM {schema}.bucket_takes
WHERE granted_at IS NULL AND tenant = %(tenant)s AND mark >= %(first)s AND mark < %(end)s
