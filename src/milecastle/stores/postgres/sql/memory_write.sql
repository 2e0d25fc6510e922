-- Writes items of long-term memory. A version that is not the expected one divides by zero: then
-- the transaction has written nothing. Those of a batch are written only if this transaction has
-- written its last entry (memory_fence.sql).
--
-- Parameters by number and in binary: tenant 1; of each item path 2, key 3, value 4, whether it is
-- removed 5, subject 6, words with spaces between 7, vectors 8, model 9, ttl 10 and expected
-- version 11, both -1 for none; thread 12, seq 13.
WITH {given}, removed AS (
    DELETE FROM {schema}.memories AS old
    USING given
    WHERE given.removed AND old.tenant = $1 AND old.path = given.path AND old.key = given.key
    RETURNING old.path, old.key, CASE WHEN {live} THEN old.version ELSE 0 END AS version
), written AS (
    {insert}
    RETURNING path, key, version
)
SELECT 1 / (count(*) FILTER (WHERE expected <> coalesce(found.version, 0)) = 0)::integer
FROM given LEFT JOIN (
    SELECT path, key, version - 1 AS version FROM written
    UNION ALL
    SELECT path, key, version FROM removed
) AS found USING (path, key)
WHERE expected >= 0
