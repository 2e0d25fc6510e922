-- The row of a thread, which everything that changes its line or runs locks. What follows in
-- the same transaction sees what others did until then.
SELECT FROM {schema}.threads
WHERE tenant = %(tenant)s AND thread = %(thread)s
FOR NO KEY UPDATE
