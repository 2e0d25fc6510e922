-- Correct what was granted, once for a mark, behind the lock of the bucket.
WITH asked AS (
    SELECT
        present.now,
        least(ceil(abs(%(amount)s::bigint)::numeric * bucket.period / bucket.rate), %(year)s::bigint)::bigint AS cost
    FROM (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
    ) AS present
    CROSS JOIN {schema}.buckets AS bucket
    WHERE bucket.tenant = %(tenant)s AND bucket.name = %(name)s
),
noted AS (
    INSERT INTO {schema}.bucket_takes (tenant, name, mark, amount, ready_at, granted_at)
    SELECT %(tenant)s, %(name)s, %(mark)s, %(amount)s, now, now FROM asked
    ON CONFLICT (tenant, name, mark) DO NOTHING
    RETURNING mark
),
moved AS (
    UPDATE {schema}.buckets AS bucket SET
        promised = CASE WHEN %(amount)s::bigint > 0 THEN promised ELSE greatest(0, promised - cost) END,
        granted = CASE
            WHEN %(amount)s::bigint > 0 THEN greatest(granted, now) + cost
            ELSE greatest(0, granted - cost)
        END
    FROM asked, noted
    WHERE bucket.tenant = %(tenant)s AND bucket.name = %(name)s
)
SELECT 1 FROM asked
