-- The chain of a checkpoint, oldest first; after it what its entries have in common, and, if they
-- are wanted, the results that go with the head, and the record of its run, all as of one moment.
-- Kind -1 is a result, with its task as the id; kind -2 is an origin, with the seq by which entries
-- name it; kind -3 is a record, its columns as JSON in the place of the note. An origin that begins
-- with 0 has the 16 bytes of a run's id; the id of any other is taken from the index.
--
-- A rollup rests on the one that the entry before it names: so the chain is walked back.
--
-- No seq is found by a join: a planner without statistics takes a thread for one entry, and would
-- read all of them for each. Scalars and OFFSET leave it no choice but the index.
WITH RECURSIVE head AS (
    SELECT seq, held, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread} AND {readable}
    ORDER BY seq DESC
    LIMIT 1
), target AS (
    SELECT seq, roll_seq, told, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
        AND seq = (SELECT coalesce(life + {seq}::bigint, head.seq) FROM head)
        AND seq > (SELECT life FROM head)
), cut AS (
    SELECT seq, kind, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
        AND seq = (
            SELECT target.life + least(target.roll_seq, target.seq - target.life) FROM target
        )
        AND seq > (SELECT life FROM target)
    UNION ALL
    SELECT entry.seq, entry.kind, cut.life
    FROM cut, LATERAL (
        SELECT roll_seq
        FROM {schema}.entries
        WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread} AND seq = cut.seq - 1
        OFFSET 0
    ) AS before, LATERAL (
        SELECT seq, kind
        FROM {schema}.entries
        WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
            AND seq = cut.life + before.roll_seq
            AND seq > cut.life AND seq < cut.seq
        OFFSET 0
    ) AS entry
    WHERE cut.kind < 2
), chain AS MATERIALIZED (
    SELECT *, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
        AND seq > (SELECT target.life + target.roll_seq FROM target)
        AND seq <= (SELECT target.seq FROM target)
    UNION ALL
    SELECT entry.*, cut.life
    FROM cut, LATERAL (
        SELECT *
        FROM {schema}.entries
        WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread} AND seq = cut.seq
            AND kind > 0
        OFFSET 0
    ) AS entry
)
SELECT
    kind, seq - life, id, coalesce(
        CASE WHEN parent <> '' THEN parent END,
        CASE WHEN lag(seq) OVER log = seq - 1 THEN lag(id) OVER log END,
        (
            SELECT before.id
            FROM {schema}.entries AS before
            WHERE before.shard = {shard} AND before.tenant = {tenant}
                AND before.thread = {thread} AND before.seq = chain.seq - 1
        )
    ), step, source, nodes, next, told, origin, created_at, base_seq, roll_seq, payload, route, note
FROM chain
WINDOW log AS (ORDER BY seq)
UNION ALL
SELECT
    -2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, named.told, teller.origin, NULL, NULL, NULL,
    NULL, NULL, NULL
FROM (SELECT DISTINCT told, life FROM chain) AS named, LATERAL (
    SELECT origin
    FROM {schema}.entries
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
        AND seq >= named.life + named.told
    ORDER BY seq
    LIMIT 1
) AS teller
UNION ALL
SELECT
    -1, NULL, result.digest, result.digest, result.given::integer, NULL, result.task, NULL, NULL,
    NULL, NULL, NULL, NULL, result.payload, NULL, NULL
FROM (
    SELECT DISTINCT ON (digest) *
    FROM {schema}.results
    WHERE {results} AND shard = {shard} AND tenant = {tenant} AND thread = {thread}
        AND seq >= (SELECT head.seq - head.held FROM head JOIN target ON target.seq = head.seq)
    ORDER BY digest, seq DESC
) AS result
UNION ALL
SELECT
    -3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    jsonb_build_array(
        run.run_id, run.graph, run.fingerprint, run.mode, run.status, run.retry_count,
        run.previous_run_id, run.started_at, run.ended_at, run.input_digest, run.metadata,
        run.wake_at, run.owner
    )::text
FROM (
    SELECT CASE
        WHEN get_byte(written.origin, 0) = 0
            THEN encode(substr(written.origin, 2, 16), 'hex')::uuid::text
        ELSE (SELECT run_id FROM {schema}.threads WHERE tenant = {tenant} AND thread = {thread})
    END AS run_id
    FROM target, LATERAL (
        SELECT origin
        FROM {schema}.entries
        WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
            AND seq >= target.life + target.told
        ORDER BY seq
        LIMIT 1
    ) AS written
    WHERE {record}
    OFFSET 0
) AS author, LATERAL (
    SELECT *
    FROM {schema}.runs
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
        AND run_id = author.run_id AND status IS NOT NULL
    OFFSET 0
) AS run
ORDER BY 2 NULLS LAST
