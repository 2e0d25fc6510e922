-- Rows of the index that this transaction has written: those that wait for a message that is there
-- are due. It follows the commit in its transaction: by then the row is held, and every message that
-- was sent before is seen. Parameters by number and in binary: tenants 1, threads 2.
UPDATE {schema}.threads AS line
SET due_at = least(line.due_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM unnest($1, $2) AS asked (tenant, thread)
WHERE line.tenant = asked.tenant AND line.thread = asked.thread AND line.worker = ''
    AND line.lane <> '' AND line.xmin = pg_current_xact_id()::xid AND {has_unread}
RETURNING 1
