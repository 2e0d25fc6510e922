-- Empty a bucket until a time, or for some microseconds.
UPDATE {schema}.buckets SET granted = greatest(
    granted,
    ceil(burst::numeric * period / rate)::bigint + coalesce(
        %(until)s::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(wait)s::bigint
    )
)
WHERE tenant = %(tenant)s AND name = %(name)s
RETURNING 1
