-- The row of a thread, held until the end of a user's transaction. A process that stops in between
-- is not waited for longer than this time. Parameters: tenant 1, thread 2, time 3.
SELECT set_config('idle_in_transaction_session_timeout', $3, true)
FROM {schema}.threads
WHERE tenant = $1 AND thread = $2
FOR NO KEY UPDATE
