-- A waiting input is a message of the topic __input, with the id of its run as its mark. A row whose
-- checksum did not match before has -1, which no row matches.
INSERT INTO mailbox (id, topic, mark, sent_at, consumed, payload, sum)
SELECT
    id, '__input', run_id, 0, NULL, payload,
    CASE
        WHEN is_sound THEN checksum(id, '__input', run_id, 0, NULL, payload) ELSE -1
    END
FROM (
    SELECT
        i.run_id, i.payload, i.sum = checksum(i.id, i.mark, i.run_id, i.payload) AS is_sound,
        t.id * 4294967296 + t.messages + row_number() OVER (PARTITION BY t.id ORDER BY i.id) AS id
    FROM inputs AS i JOIN threads AS t ON t.id = i.id >> 32
);
UPDATE threads
SET
    messages = threads.messages + counted.added,
    unread = threads.unread + counted.added,
    sum = CASE
        WHEN sum = checksum(
            threads.id, tenant, thread, first, runs, failures, status, started_at, run_id, graph,
            ended_at, wake_at, questions, lane, due_at, worker, rank, waiting_topics, messages,
            unread
        ) THEN checksum(
            threads.id, tenant, thread, first, runs, failures, status, started_at, run_id, graph,
            ended_at, wake_at, questions, lane, due_at, worker, rank, waiting_topics,
            messages + counted.added, unread + counted.added
        )
        ELSE -1
    END
FROM (SELECT id >> 32 AS id, count(*) AS added FROM inputs GROUP BY 1) AS counted
WHERE counted.id = threads.id;
DROP TABLE inputs;

PRAGMA user_version = 9;
