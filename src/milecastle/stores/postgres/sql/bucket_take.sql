-- Grant an amount or promise it, as BucketLevel.take does, behind the lock of the bucket. A mark that has
-- a turn gets that, unless it is ready and not granted yet.
WITH asked AS (
    SELECT
        bucket.promised, bucket.granted, bucket.burst, present.now, known.ready_at,
        known.granted_at, known.mark IS NULL AS is_new,
        least(ceil(%(amount)s::numeric * bucket.period / bucket.rate), %(year)s::bigint)::bigint AS cost,
        ceil(bucket.burst::numeric * bucket.period / bucket.rate)::bigint AS room
    FROM (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
    ) AS present
    CROSS JOIN {schema}.buckets AS bucket
    LEFT JOIN {schema}.bucket_takes AS known
        ON known.tenant = bucket.tenant AND known.name = bucket.name AND known.mark = %(mark)s
    WHERE bucket.tenant = %(tenant)s AND bucket.name = %(name)s
),
placed AS (
    SELECT
        *, greatest(granted, now) + cost AS spent,
        greatest(promised, granted, now) + cost AS given,
        is_new OR (granted_at IS NULL AND ready_at <= now) AS is_open
    FROM asked
),
decided AS (
    SELECT
        *, is_open AND %(amount)s::bigint <= burst AS is_changed,
        CASE WHEN is_new THEN given ELSE spent END - room <= now AS is_granted
    FROM placed
),
taken AS (
    INSERT INTO {schema}.bucket_takes (tenant, name, mark, amount, ready_at, granted_at)
    SELECT
        %(tenant)s, %(name)s, %(mark)s, %(amount)s,
        CASE WHEN is_granted THEN now ELSE given - room END, CASE WHEN is_granted THEN now END
    FROM decided WHERE is_changed
    ON CONFLICT (tenant, name, mark) DO UPDATE SET
        ready_at = excluded.ready_at, granted_at = excluded.granted_at
    RETURNING ready_at, granted_at
),
moved AS (
    UPDATE {schema}.buckets AS bucket SET
        promised = CASE WHEN is_new OR NOT is_granted THEN given ELSE bucket.promised END,
        granted = CASE WHEN is_granted THEN spent ELSE bucket.granted END
    FROM decided
    WHERE is_changed AND bucket.tenant = %(tenant)s AND bucket.name = %(name)s
),
swept AS (
    DELETE FROM {schema}.bucket_takes AS old USING decided
    WHERE old.tenant = %(tenant)s AND old.name = %(name)s AND old.mark <> %(mark)s
        AND old.ready_at < decided.now - %(kept)s::bigint
)
SELECT
    decided.now, decided.burst, coalesce(taken.ready_at, decided.ready_at),
    coalesce(taken.granted_at, decided.granted_at), decided.is_open AND NOT decided.is_changed
FROM decided LEFT JOIN taken ON true
