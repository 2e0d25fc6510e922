-- Messages with their numbers; those that are consumed have the seq of the entry that consumed them.
INSERT INTO {schema}.mailbox (number, sent_at, consumed, tenant, thread, topic, mark, payload)
SELECT
    given.number, given.sent_at, given.consumed + head.seq - (head.seq & 4294967295), line.tenant,
    line.thread, given.topic, given.mark, given.payload
FROM {schema}.threads AS line, (
    SELECT coalesce(max(seq), 0) AS seq
    FROM {schema}.entries
    WHERE shard = %(shard)s AND tenant = %(tenant)s AND thread = %(thread)s
) AS head, unnest(
    %(numbers)s::bigint[], %(sent_at)s::bigint[], %(consumed)s::bigint[], %(topics)s::text[],
    %(marks)s::text[], %(payloads)s::bytea[]
) AS given (number, sent_at, consumed, topic, mark, payload)
WHERE line.tenant = %(tenant)s AND line.thread = %(thread)s AND line.run_id IS NOT NULL
    AND {placed}
RETURNING 1
