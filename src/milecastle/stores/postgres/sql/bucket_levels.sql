SELECT
    tenant, name, rate, period, burst, promised, granted, (
        SELECT count(*) FROM {schema}.bucket_takes AS turn
        WHERE turn.tenant = bucket.tenant AND turn.name = bucket.name AND turn.granted_at IS NULL
    )
FROM {schema}.buckets AS bucket
ORDER BY name, tenant
