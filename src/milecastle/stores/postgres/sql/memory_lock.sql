-- Holds the items that a transaction is about to write, in one order for all transactions: two that
-- write the same items in other orders would wait for each other.
--
-- Parameters by number and in binary: tenant 1; of each item path 2, key 3.
SELECT 1
FROM {schema}.memories
WHERE tenant = $1 AND (path, key) IN (SELECT * FROM unnest($2, $3))
ORDER BY path, key
FOR UPDATE
