-- Wait until no other claim under limits is under way: who claims next counts what this one claims.
-- The server ends the transaction if its process pauses (it may be suspended), so that nobody waits
-- for long. Nothing of a table is locked: limits can be set meanwhile.
SELECT
    set_config('lock_timeout', %(wait)s, true),
    set_config('idle_in_transaction_session_timeout', %(held)s, true),
    pg_advisory_xact_lock(hashtextextended('milecastle limits', tableoid::bigint))
FROM {schema}.limits
LIMIT 1
