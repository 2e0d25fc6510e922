WITH turns AS (
    DELETE FROM {schema}.bucket_takes WHERE tenant = %(tenant)s AND name = %(name)s
)
DELETE FROM {schema}.buckets WHERE tenant = %(tenant)s AND name = %(name)s RETURNING 1
