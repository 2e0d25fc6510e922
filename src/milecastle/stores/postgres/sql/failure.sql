SELECT failure
FROM {schema}.runs
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s AND run_id = %(run_id)s
    AND failure IS NOT NULL AND {readable}
