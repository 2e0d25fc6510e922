-- Results of tasks whose siblings still run. They touch neither the log nor the thread index; the
-- lock on the head only makes a deletion wait for them, so that it leaves none behind.
--
-- Parameters by number and in binary: shard 1, tenant 2, thread 3, head 4; of each result: digest
-- 5, seq 6, task 7, payload 8; the id of the head 9, empty if the writer does not know it.
WITH head AS (
    SELECT seq, held, id
    FROM {schema}.entries
    WHERE shard = $1 AND tenant = $2 AND thread = $3
        AND seq = (
            SELECT max(seq)
            FROM {schema}.entries
            WHERE shard = $1 AND tenant = $2 AND thread = $3
        )
    FOR KEY SHARE
), passed AS (
    SELECT seq, held FROM head
    WHERE seq & 4294967295 = $4 AND ($9 = '' OR id = $9) AND {new} AND {placed}
), spent_result AS (
    DELETE FROM {schema}.results -- not USING passed: the plan may then read every result
    WHERE shard = $1 AND tenant = $2 AND thread = $3
        AND seq < (SELECT passed.seq - passed.held FROM passed)
), kept_result AS (
    INSERT INTO {schema}.results (shard, tenant, thread, seq, digest, given, task, payload)
    SELECT $1, $2, $3, passed.seq, result.digest, result.given, result.task, result.payload
    FROM passed, unnest($5, $6, $7, $8) AS result (digest, given, task, payload)
    ON CONFLICT (shard, tenant, thread, seq, digest) DO UPDATE SET
        given = excluded.given,
        task = excluded.task,
        payload = excluded.payload
)
SELECT 1 FROM passed
