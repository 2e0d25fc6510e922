EXISTS (
    SELECT
    FROM rates
    JOIN {schema}.key_meters AS meter
        ON meter.graph = rates.graph AND meter.tenant = rates.tenant
    WHERE rates.graph IN ('', asked.graph) AND rates.tenant IN ('', {tenant})
        AND rates.key = split_part({limit_key}, '=', 1) AND meter.limit_key = {limit_key}
        AND meter.is_full AND meter.until > (SELECT now FROM present)
)