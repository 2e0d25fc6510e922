-- A message, unless the mailbox has one with this mark. The row of the thread is updated first: its
-- values are then those of the last sender and of the last commit, and both wait here. So the number
-- is the next one, and the thread is due if it waits for the topic. Two who send the same mark at
-- once are told apart by the key; the second tries again.
--
-- It returns the number, whether that is an earlier message's, the status of the thread, and whether
-- it is due; nothing if there is no thread, or too many messages are unread. The number is 0, and
-- nothing is written, if the thread is not of the graph, or has no lane.
--
-- Parameters by number and in binary: shard 1, tenant 2, thread 3, topic 4, mark 5, payload 6, how
-- many may be unread 7, the graph 8, empty for any. If 9 is not negative, the thread is due so long
-- after this message, at most so long after the first unread one 10, or when it wakes. With a run
-- also its record 11, the digest 12 no run may have but the one with the id 13: send_seen.sql and
-- send_run.sql. A run that was recorded meanwhile has changed the row: then nothing is written, and
-- the call tries again.
WITH earlier AS (
    SELECT number
    FROM {schema}.mailbox
    WHERE tenant = $2 AND thread = $3 AND mark = $5 AND {placed}
){seen}, line AS (
    UPDATE {schema}.threads AS known
    SET
        last_message = known.last_message + 1,
        unread = known.unread + 1,
        inputs = known.inputs + {added},
        runs = known.runs + {added},
        due_at = CASE
            WHEN $4 = {inputs}
            THEN CASE
                WHEN known.due_at IS NULL AND known.worker = '' AND known.lane <> ''
                    AND known.status IN ('completed', 'cancelled')
                THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
                ELSE known.due_at
            END
            WHEN known.worker = '' AND known.lane <> '' AND EXISTS (
                SELECT FROM jsonb_array_elements(known.waiting_topics) AS awaited
                WHERE awaited ->> 0 = $4 AND (awaited ->> 1)::bigint <= known.last_message
            )
            THEN CASE
                WHEN $9 < 0
                    OR known.due_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
                THEN least(known.due_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
                ELSE greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, least(
                    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $9,
                    known.wake_at,
                    $10 + coalesce((
                        SELECT first.sent_at
                        FROM {schema}.mailbox AS first
                        WHERE first.tenant = $2 AND first.thread = $3 AND first.topic = $4
                            AND first.consumed IS NULL AND first.number > (
                                SELECT max((awaited ->> 1)::bigint)
                                FROM jsonb_array_elements(known.waiting_topics) AS awaited
                                WHERE awaited ->> 0 = $4
                            )
                        ORDER BY first.number
                        LIMIT 1
                    ), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
                ))
            END
            ELSE known.due_at
        END
    WHERE known.tenant = $2 AND known.thread = $3 AND known.run_id IS NOT NULL
        AND known.unread < $7 AND NOT EXISTS (SELECT FROM earlier) AND {placed}
        AND ($8 = '' OR (known.graph = $8 AND known.lane <> '')) AND {is_new}
    RETURNING
        tenant, thread, last_message, runs, status, worker = ''
            AND (waiting_topics IS NOT NULL OR $4 = {inputs})
            AND due_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS is_due
), kept AS (
    INSERT INTO {schema}.mailbox (number, sent_at, tenant, thread, topic, mark, payload)
    SELECT
        last_message, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, tenant, thread,
        $4, $5, $6
    FROM line
){recorded}
SELECT last_message, false, status, is_due IS TRUE FROM line
UNION ALL
SELECT earlier.number, true, known.status, false
FROM earlier, {schema}.threads AS known
WHERE known.tenant = $2 AND known.thread = $3 AND known.run_id IS NOT NULL
    AND ($8 = '' OR (known.graph = $8 AND known.lane <> ''))
UNION ALL
SELECT 0, false, status, false
FROM {schema}.threads
WHERE tenant = $2 AND thread = $3 AND run_id IS NOT NULL AND {placed}
    AND $8 <> '' AND (graph <> $8 OR lane = '')
UNION ALL
SELECT 0, true, status, false
FROM {schema}.threads
WHERE tenant = $2 AND thread = $3 AND run_id IS NOT NULL AND {placed} AND {is_known}
