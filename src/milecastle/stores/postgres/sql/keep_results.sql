-- Results of tasks whose siblings still run. They touch neither the log nor the thread index; the
-- lock on the head only makes a deletion wait for them, so that it leaves none behind.
WITH head AS (
    SELECT seq, origin, settled
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND seq = (
            SELECT max(seq)
            FROM {schema}.entries
            WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        )
    FOR KEY SHARE
), passed AS (
    SELECT seq, settled FROM head WHERE seq - origin = %(head)s
), spent_result AS (
    DELETE FROM {schema}.results AS result
    USING passed
    WHERE result.shard = %(shard)s AND result.tenant = %(tenant)s AND result.thread = %(thread)s
        AND result.seq < passed.settled
), kept_result AS (
    INSERT INTO {schema}.results (shard, tenant, thread, seq, digest, given, task, payload)
    SELECT %(shard)s, %(tenant)s, %(thread)s, passed.seq, digest, given, task, payload
    FROM passed, unnest(
        %(result_digests)s::bytea[], %(result_seqs)s::bigint[], %(result_tasks)s::text[],
        %(result_payloads)s::bytea[]
    ) AS result (digest, given, task, payload)
    ON CONFLICT (shard, tenant, thread, seq, digest) DO UPDATE SET
        given = excluded.given,
        task = excluded.task,
        payload = excluded.payload
)
SELECT seq FROM passed
