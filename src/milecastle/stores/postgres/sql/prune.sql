-- Puts snapshots in the place of entries and drops some of what is below the cut, the newest
-- first: what is left at any moment has its chain below it. The first entry that stays is told
-- what it had from those below: its parent, its run and its fingerprint.
--
-- With an oldest entry, nothing happens if it is another by now (lock_thread.sql comes first, so
-- that none is overlooked). The marks of messages stay if what is dropped was archived.
--
-- What is touched is chosen first, into arrays, as in sweep_entries.sql.
WITH head AS (
    SELECT seq, seq - (seq & 4294967295) AS life, roll_seq
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), passed AS (
    SELECT life FROM head
    WHERE seq - life = %(head)s AND roll_seq >= %(highest)s AND {placed}
        AND (
            %(oldest)s::bigint IS NULL
            OR (%(oldest)s::bigint, %(oldest_id)s::bytea, %(oldest_payload)s::bytea) = (
                SELECT entry.seq - head.life, entry.id, entry.payload
                FROM {schema}.entries AS entry
                WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s
                    AND entry.thread = %(thread)s AND entry.seq > head.life
                ORDER BY entry.seq
                LIMIT 1
            )
        )
), given AS (
    SELECT *
    FROM unnest(
        %(seqs)s::bigint[], %(kinds)s::smallint[], %(base_seqs)s::integer[],
        %(roll_seqs)s::integer[], %(payloads)s::bytea[], %(notes)s::text[]
    ) AS given (seq, kind, base_seq, roll_seq, payload, note)
    UNION ALL
    SELECT %(cut)s::bigint, NULL, NULL, NULL, NULL, NULL
    WHERE %(cut)s::bigint <> ALL (%(seqs)s::bigint[])
), rewritten AS (
    UPDATE {schema}.entries AS entry
    SET
        kind = coalesce(given.kind, entry.kind),
        base_seq = coalesce(given.base_seq, entry.base_seq),
        roll_seq = coalesce(given.roll_seq, entry.roll_seq),
        payload = coalesce(given.payload, entry.payload),
        note = coalesce(given.note, entry.note),
        parent = CASE
            WHEN given.seq > %(cut)s::bigint OR entry.parent <> '' THEN entry.parent
            ELSE (
                SELECT before.id
                FROM {schema}.entries AS before
                WHERE before.shard = %(shard)s AND before.tenant = %(tenant)s
                    AND before.thread = %(thread)s AND before.seq = entry.seq - 1
            )
        END,
        origin = CASE
            WHEN given.seq > %(cut)s::bigint OR entry.origin <> '' THEN entry.origin
            ELSE (
                SELECT teller.origin
                FROM {schema}.entries AS teller
                WHERE teller.shard = %(shard)s AND teller.tenant = %(tenant)s
                    AND teller.thread = %(thread)s AND teller.seq >= passed.life + entry.told
                ORDER BY teller.seq
                LIMIT 1
            )
        END
    FROM passed, given
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND entry.seq = ANY (ARRAY(SELECT passed.life + given.seq FROM passed, given))
        AND entry.seq = passed.life + given.seq
        AND entry.seq > passed.life
), gone AS (
    DELETE FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
        AND seq = ANY (ARRAY(
            SELECT seq
            FROM {schema}.entries
            WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
                AND seq > (SELECT life FROM passed)
                AND seq < (SELECT life FROM passed) + %(cut)s::bigint
            ORDER BY seq DESC
            LIMIT %(limit)s
        ))
    RETURNING 1
), forgotten AS (
    DELETE FROM {schema}.mailbox
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND NOT %(archived)s::boolean
        AND mark = ANY (ARRAY(
            SELECT mark
            FROM {schema}.mailbox
            WHERE tenant = %(tenant)s AND thread = %(thread)s
                AND consumed < (SELECT life FROM passed) + %(cut)s::bigint
            LIMIT %(limit)s
        ))
    RETURNING 1
), touched AS ( -- see move_changed.sql
    UPDATE {schema}.threads
    SET fence = fence
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND EXISTS (SELECT FROM passed)
)
SELECT life, (SELECT count(*) FROM gone), (SELECT count(*) FROM forgotten) FROM passed
