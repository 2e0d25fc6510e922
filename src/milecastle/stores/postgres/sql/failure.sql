SELECT
    run_id, failure_class, resumable, error_type, message, traceback, causes, attempt, time, node
FROM {schema}.failures
WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s AND run_id = %(run_id)s
