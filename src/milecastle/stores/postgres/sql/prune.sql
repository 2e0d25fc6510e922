-- Puts snapshots in the place of entries and drops some of what is below the cut, the newest
-- first: what is left at any moment has its chain below it.
WITH head AS (
    SELECT seq, origin, roll_seq
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), passed AS (
    SELECT origin FROM head WHERE seq - origin = %(head)s AND roll_seq >= %(highest)s
), rewritten AS (
    UPDATE {schema}.entries AS entry
    SET
        kind = given.kind, base_seq = given.base_seq, roll_seq = given.roll_seq,
        payload = given.payload
    FROM passed, unnest(
        %(seqs)s::bigint[], %(kinds)s::smallint[], %(base_seqs)s::bigint[],
        %(roll_seqs)s::bigint[], %(payloads)s::bytea[]
    ) AS given (seq, kind, base_seq, roll_seq, payload)
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq = passed.origin + given.seq
        AND entry.seq > passed.origin
), chosen AS (
    SELECT entry.seq
    FROM passed, {schema}.entries AS entry
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq > passed.origin
        AND entry.seq < passed.origin + %(cut)s::bigint
    ORDER BY entry.seq DESC
    LIMIT %(limit)s
), gone AS (
    DELETE FROM {schema}.entries AS entry
    USING chosen
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq = chosen.seq
    RETURNING 1
)
SELECT origin, (SELECT count(*) FROM gone) FROM passed
