-- What stood beside the log of a buried thread. A statement of its own, after the burial, so that
-- it sees what was written until then.
WITH run AS (
    DELETE FROM {schema}.runs
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    RETURNING 1
), failure AS (
    DELETE FROM {schema}.failures
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
), result AS (
    DELETE FROM {schema}.results
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
)
SELECT count(*) FROM run
