-- The chain of a checkpoint, oldest first; after it what its entries have in common, and the
-- results that go with the head, all as of one moment. Kind -1 is a result, with its task as the
-- id; kind -2 is an origin, with the seq by which entries name it.
--
-- A rollup rests on the one that the entry before it names: so the chain is walked back.
WITH RECURSIVE head AS (
    SELECT seq, held, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = {shard} AND tenant = {tenant} AND thread = {thread}
    ORDER BY seq DESC
    LIMIT 1
), target AS (
    SELECT entry.seq, entry.roll_seq, head.life
    FROM head, {schema}.entries AS entry
    WHERE entry.shard = {shard} AND entry.tenant = {tenant} AND entry.thread = {thread}
        AND entry.seq = coalesce(head.life + {seq}::bigint, head.seq)
        AND entry.seq > head.life
), cut AS (
    SELECT entry.seq, entry.kind, target.life
    FROM target, {schema}.entries AS entry
    WHERE entry.shard = {shard} AND entry.tenant = {tenant} AND entry.thread = {thread}
        AND entry.seq = target.life + least(target.roll_seq, target.seq - target.life)
        AND entry.seq > target.life
    UNION ALL
    SELECT entry.seq, entry.kind, cut.life
    FROM cut, {schema}.entries AS before, {schema}.entries AS entry
    WHERE before.shard = {shard} AND before.tenant = {tenant} AND before.thread = {thread}
        AND before.seq = cut.seq - 1
        AND entry.shard = {shard} AND entry.tenant = {tenant} AND entry.thread = {thread}
        AND entry.seq = cut.life + before.roll_seq
        AND entry.seq > cut.life AND entry.seq < cut.seq
        AND cut.kind < 2
), chain AS MATERIALIZED (
    SELECT entry.*, target.life
    FROM target, {schema}.entries AS entry
    WHERE entry.shard = {shard} AND entry.tenant = {tenant} AND entry.thread = {thread}
        AND entry.seq > target.life + target.roll_seq
        AND entry.seq <= target.seq
    UNION ALL
    SELECT entry.*, cut.life
    FROM cut, {schema}.entries AS entry
    WHERE entry.shard = {shard} AND entry.tenant = {tenant} AND entry.thread = {thread}
        AND entry.seq = cut.seq
        AND entry.kind > 0
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
    SELECT DISTINCT ON (result.digest) result.*
    FROM head, target, {schema}.results AS result
    WHERE result.shard = {shard} AND result.tenant = {tenant} AND result.thread = {thread}
        AND target.seq = head.seq
        AND result.seq >= head.seq - head.held
    ORDER BY result.digest, result.seq DESC
) AS result
ORDER BY 2 NULLS LAST
