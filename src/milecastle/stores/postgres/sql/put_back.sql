-- Puts archived entries back below the oldest one, which gets its payload without them. Each
-- entry has its parent and its origin, so nothing depends on what was there before. Nothing
-- happens unless the head and the oldest entry are those that were read (lock_thread.sql first).
WITH head AS (
    SELECT seq, seq - (seq & 4294967295) AS life
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
    ORDER BY seq DESC
    LIMIT 1
), passed AS (
    SELECT head.life
    FROM head, LATERAL (
        SELECT entry.seq, entry.id, entry.payload
        FROM {schema}.entries AS entry
        WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s
            AND entry.thread = %(thread)s AND entry.seq > head.life
        ORDER BY entry.seq
        LIMIT 1
    ) AS oldest
    WHERE head.seq - head.life = %(head)s::bigint
        AND oldest.seq - head.life = %(oldest)s::bigint AND oldest.id = %(oldest_id)s::bytea
        AND oldest.payload = %(oldest_payload)s::bytea
        AND {placed}
), given AS (
    SELECT *
    FROM unnest(
        %(seqs)s::bigint[], %(kinds)s::smallint[], %(steps)s::integer[], %(base_seqs)s::integer[],
        %(roll_seqs)s::integer[], %(times)s::bigint[], %(sources)s::smallint[], %(ids)s::bytea[],
        %(parents)s::bytea[], %(origins)s::bytea[], %(nodes)s::text[], %(nexts)s::text[],
        %(routes)s::text[], %(notes)s::text[], %(payloads)s::bytea[]
    ) AS given (
        seq, kind, step, base_seq, roll_seq, created_at, source, id, parent, origin, nodes, next,
        route, note, payload
    )
), inserted AS (
    INSERT INTO {schema}.entries (
        shard, tenant, thread, seq, kind, step, base_seq, roll_seq, created_at, source,
        held, told, id, parent, origin, nodes, next, route, note, payload
    )
    SELECT
        %(shard)s, %(tenant)s, %(thread)s, passed.life + given.seq, given.kind, given.step,
        given.base_seq, given.roll_seq, given.created_at, given.source,
        0, given.seq, given.id, given.parent, given.origin, given.nodes, given.next, given.route,
        given.note, given.payload
    FROM passed, given
    WHERE given.seq < %(oldest)s::bigint
), changed AS (
    UPDATE {schema}.entries AS entry
    SET payload = given.payload
    FROM passed, given
    WHERE entry.shard = %(shard)s AND entry.tenant = %(tenant)s AND entry.thread = %(thread)s
        AND given.seq = %(oldest)s::bigint AND entry.seq = passed.life + given.seq
), touched AS ( -- see move_changed.sql
    UPDATE {schema}.threads
    SET fence = fence
    WHERE tenant = %(tenant)s AND thread = %(thread)s AND EXISTS (SELECT FROM passed)
)
SELECT FROM passed
