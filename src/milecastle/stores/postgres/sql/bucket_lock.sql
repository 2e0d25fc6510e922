-- The row of a bucket, which everything that changes it or its turns locks. What follows in the
-- same transaction sees what others took until then.
SELECT FROM {schema}.buckets WHERE tenant = %(tenant)s AND name = %(name)s FOR UPDATE
