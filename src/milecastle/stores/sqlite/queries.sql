-- Every statement of the SQLite store, by name.

-- name: append
-- The step: sum is NULL, and the row refused, unless the head is there and is the parent.
INSERT INTO entries (
    id, checkpoint, step, source, nodes, next, origin, created_at,
    kind, base_seq, roll_seq, prior, route, note, payload, sum
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    (SELECT ? FROM entries WHERE id = ? AND checkpoint = ?)
);

-- name: put_entry
INSERT INTO entries (
    id, checkpoint, step, source, nodes, next, origin, created_at,
    kind, base_seq, roll_seq, prior, route, note, payload, sum, parent
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: replace_entry
REPLACE INTO entries (
    id, checkpoint, step, source, nodes, next, origin, created_at,
    kind, base_seq, roll_seq, prior, route, note, payload, sum, parent
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: lay_out
-- To be rolled back: no thread has the number 0.
INSERT INTO entries (
    id, checkpoint, step, source, origin, created_at, kind, base_seq, roll_seq, note, sum, payload
) VALUES (0, x'', 0, 0, 0, 0, 0, 0, 0, '', 0, zeroblob(?));

-- name: entry
-- One entry with its payload.
SELECT e.id, e.checkpoint, CASE WHEN e.parent IS NULL THEN p.checkpoint ELSE e.parent END,
    e.step, e.source, e.nodes, e.next, e.origin, e.created_at, e.kind, e.base_seq, e.roll_seq,
    e.prior, e.route, e.note, e.sum, e.payload
FROM entries AS e LEFT JOIN entries AS p ON p.id = e.id - 1
WHERE e.id = ?;

-- name: entries_down
-- Entries with their payloads from the first id down to above the second.
SELECT e.id, e.checkpoint, CASE WHEN e.parent IS NULL THEN p.checkpoint ELSE e.parent END,
    e.step, e.source, e.nodes, e.next, e.origin, e.created_at, e.kind, e.base_seq, e.roll_seq,
    e.prior, e.route, e.note, e.sum, e.payload
FROM entries AS e LEFT JOIN entries AS p ON p.id = e.id - 1
WHERE e.id <= ? AND e.id > ?
ORDER BY e.id DESC;

-- name: entries_up
-- Entries with their payloads from above the first id up to the second.
SELECT e.id, e.checkpoint, CASE WHEN e.parent IS NULL THEN p.checkpoint ELSE e.parent END,
    e.step, e.source, e.nodes, e.next, e.origin, e.created_at, e.kind, e.base_seq, e.roll_seq,
    e.prior, e.route, e.note, e.sum, e.payload
FROM entries AS e LEFT JOIN entries AS p ON p.id = e.id - 1
WHERE e.id > ? AND e.id <= ?
ORDER BY e.id;

-- name: bare_entries_down
-- Entries without payloads from the first id down to the second.
SELECT e.id, e.checkpoint, CASE WHEN e.parent IS NULL THEN p.checkpoint ELSE e.parent END,
    e.step, e.source, e.nodes, e.next, e.origin, e.created_at, e.kind, e.base_seq, e.roll_seq,
    e.prior, e.route, e.note, e.sum
FROM entries AS e LEFT JOIN entries AS p ON p.id = e.id - 1
WHERE e.id <= ? AND e.id >= ?
ORDER BY e.id DESC LIMIT ?;

-- name: bare_entries_up
-- Entries without payloads above an id.
SELECT e.id, e.checkpoint, CASE WHEN e.parent IS NULL THEN p.checkpoint ELSE e.parent END,
    e.step, e.source, e.nodes, e.next, e.origin, e.created_at, e.kind, e.base_seq, e.roll_seq,
    e.prior, e.route, e.note, e.sum
FROM entries AS e LEFT JOIN entries AS p ON p.id = e.id - 1
WHERE e.id > ?
ORDER BY e.id LIMIT ?;

-- name: search_checkpoint
SELECT id FROM entries WHERE id BETWEEN ? AND ? AND checkpoint = ? ORDER BY id LIMIT 1;

-- name: keep_parent
-- Write out the parent of an entry before the entry that it was is dropped.
UPDATE entries
SET parent = coalesce((SELECT checkpoint FROM entries WHERE id = ? - 1), x'')
WHERE id = ? AND parent IS NULL;

-- name: drop_entries
DELETE FROM entries WHERE id BETWEEN ? AND ?;

-- name: put_origin
INSERT INTO origins VALUES (?, ?, ?, ?);

-- name: origin
SELECT id, run_id, fingerprint, sum FROM origins WHERE id = ?;

-- name: drop_origins
DELETE FROM origins WHERE id BETWEEN ? AND ?;

-- name: put_result
INSERT INTO results VALUES (?, ?, ?, ?, ?, ?);

-- name: results
SELECT id, head, seq, task, payload, sum FROM results WHERE id > ? ORDER BY id;

-- name: count_results
SELECT count(*) FROM results
WHERE id > ? AND id <= ? AND (task = ? OR (task >= ? AND task < ?));

-- name: result_below
SELECT id, head, seq, task, payload, sum FROM results WHERE id < ? ORDER BY id DESC LIMIT 1;

-- name: result_above
SELECT id, head, seq, task, payload, sum FROM results WHERE id > ? ORDER BY id LIMIT 1;

-- name: drop_results
DELETE FROM results WHERE id BETWEEN ? AND ?;

-- name: put_run
-- A run that is there keeps its number and its place.
INSERT INTO runs (
    thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum, number, tenant, place
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    1 + coalesce((SELECT place FROM runs WHERE tenant = ? ORDER BY place DESC LIMIT 1), 0)
)
ON CONFLICT (thread, run_id) DO UPDATE SET
    started_at = excluded.started_at, graph = excluded.graph, fingerprint = excluded.fingerprint,
    mode = excluded.mode, status = excluded.status, retry_count = excluded.retry_count,
    previous_run_id = excluded.previous_run_id, ended_at = excluded.ended_at,
    input_digest = excluded.input_digest, metadata = excluded.metadata,
    wake_at = excluded.wake_at, owner = excluded.owner, sum = excluded.sum;

-- name: run
SELECT thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum
FROM runs WHERE thread = ? AND run_id = ?;

-- name: run_number
SELECT number FROM runs WHERE thread = ? AND run_id = ?;

-- name: run_of_input
SELECT thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum
FROM runs WHERE thread = ? AND input_digest = ? AND input_digest <> ''
ORDER BY number DESC LIMIT 1;

-- name: run_below
SELECT thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum
FROM runs WHERE (thread, run_id) < (?, ?) ORDER BY thread DESC, run_id DESC LIMIT 1;

-- name: run_above
SELECT thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum
FROM runs WHERE (thread, run_id) > (?, ?) ORDER BY thread, run_id LIMIT 1;

-- name: runs
SELECT number, thread, run_id, started_at, graph, fingerprint, mode, status, retry_count, previous_run_id,
    ended_at, input_digest, metadata, wake_at, owner, sum
FROM runs WHERE thread = ? ORDER BY number DESC LIMIT ?;

-- name: count_runs
SELECT count(sum) FROM runs WHERE thread = ?;

-- name: count_runs_by_input
SELECT count(*) FROM runs INDEXED BY runs_by_input WHERE thread = ?;

-- name: drop_runs
DELETE FROM runs WHERE thread = ?;

-- name: put_failure
INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: failure
SELECT * FROM failures WHERE thread = ? AND run_id = ?;

-- name: failure_below
SELECT * FROM failures WHERE (thread, run_id) < (?, ?) ORDER BY thread DESC, run_id DESC LIMIT 1;

-- name: failure_above
SELECT * FROM failures WHERE (thread, run_id) > (?, ?) ORDER BY thread, run_id LIMIT 1;

-- name: count_failures
SELECT count(sum) FROM failures WHERE thread = ?;

-- name: drop_failures
DELETE FROM failures WHERE thread = ?;

-- name: put_manifest
INSERT OR IGNORE INTO manifests VALUES (?, ?, ?, ?);

-- name: manifest
SELECT * FROM manifests WHERE tenant = ? AND fingerprint = ?;

-- name: manifests
SELECT * FROM manifests;

-- name: look
-- What a commit needs of a thread: its row, its head, the entry above that, its newest origin, the
-- number of a run. If there is no such thread: NULL, the rows beside its place, what the other index
-- finds there, and the last number that a thread got.
SELECT
    t.id, t.tenant, t.thread, t.first, t.runs, t.failures, t.status, t.started_at, t.run_id,
    t.graph, t.ended_at, t.wake_at, t.questions, t.lane, t.due_at, t.worker, t.rank,
    t.waiting_topics, t.limit_key, t.messages, t.unread, t.sum,
    h.id, h.checkpoint, CASE WHEN h.parent IS NULL THEN hp.checkpoint ELSE h.parent END,
    h.step, h.source, h.nodes, h.next, h.origin, h.created_at, h.kind, h.base_seq, h.roll_seq,
    h.prior, h.route, h.note, h.sum,
    n.id, n.checkpoint, CASE WHEN n.parent IS NULL THEN np.checkpoint ELSE n.parent END,
    n.step, n.source, n.nodes, n.next, n.origin, n.created_at, n.kind, n.base_seq, n.roll_seq,
    n.prior, n.route, n.note, n.sum,
    o.id, o.run_id, o.fingerprint, o.sum,
    r.number
FROM threads AS t
LEFT JOIN entries AS h
    ON h.id = (SELECT max(id) FROM entries WHERE id <= t.id * 4294967296 + 4294967295)
LEFT JOIN entries AS hp ON hp.id = h.id - 1
LEFT JOIN entries AS n
    ON n.id = (SELECT min(id) FROM entries WHERE id > max(t.id * 4294967296, coalesce(h.id, 0)))
LEFT JOIN entries AS np ON np.id = n.id - 1
LEFT JOIN origins AS o
    ON o.id = (
        SELECT max(id) FROM origins
        WHERE id BETWEEN t.id * 4294967296 AND t.id * 4294967296 + 4294967295
    )
LEFT JOIN runs AS r ON r.thread = t.id AND r.run_id = ?
WHERE t.tenant = ? AND t.thread = ?
UNION ALL
SELECT
    NULL,
    b.id, b.tenant, b.thread, b.first, b.runs, b.failures, b.status, b.started_at, b.run_id,
    b.graph, b.ended_at, b.wake_at, b.questions, b.lane, b.due_at, b.worker, b.rank,
    b.waiting_topics, b.limit_key, b.messages, b.unread, b.sum,
    a.id, a.tenant, a.thread, a.first, a.runs, a.failures, a.status, a.started_at, a.run_id,
    a.graph, a.ended_at, a.wake_at, a.questions, a.lane, a.due_at, a.worker, a.rank,
    a.waiting_topics, a.limit_key, a.messages, a.unread, a.sum,
    (
        SELECT id FROM threads INDEXED BY threads_by_status
        WHERE tenant = ? AND thread = ? AND status IN (
            'queued', 'running', 'interrupted', 'sleeping',
            'completed', 'failed', 'cancelled', 'superseded'
        )
    ),
    max(
        coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'threads'), 0),
        coalesce((SELECT max(id) FROM threads), 0)
    ),
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (SELECT 1)
LEFT JOIN threads AS b INDEXED BY threads_by_name
    ON (b.tenant, b.thread) = (
        SELECT tenant, thread FROM threads WHERE (tenant, thread) < (?, ?)
        ORDER BY tenant DESC, thread DESC LIMIT 1
    )
LEFT JOIN threads AS a INDEXED BY threads_by_name
    ON (a.tenant, a.thread) = (
        SELECT tenant, thread FROM threads WHERE (tenant, thread) > (?, ?)
        ORDER BY tenant, thread LIMIT 1
    )
WHERE NOT EXISTS (SELECT 1 FROM threads WHERE tenant = ? AND thread = ?);

-- name: glance
-- What opening a thread needs: its row, its head, the entry above that, the origin and the run of the
-- head, and the results up to the end of the thread and above it. If there is no such thread: NULL,
-- the rows beside its place, and what the other index finds there.
SELECT
    t.id, t.tenant, t.thread, t.first, t.runs, t.failures, t.status, t.started_at, t.run_id,
    t.graph, t.ended_at, t.wake_at, t.questions, t.lane, t.due_at, t.worker, t.rank,
    t.waiting_topics, t.limit_key, t.messages, t.unread, t.sum,
    h.id, h.checkpoint, CASE WHEN h.parent IS NULL THEN hp.checkpoint ELSE h.parent END,
    h.step, h.source, h.nodes, h.next, h.origin, h.created_at, h.kind, h.base_seq, h.roll_seq,
    h.prior, h.route, h.note, h.sum,
    n.id, n.checkpoint, CASE WHEN n.parent IS NULL THEN np.checkpoint ELSE n.parent END,
    n.step, n.source, n.nodes, n.next, n.origin, n.created_at, n.kind, n.base_seq, n.roll_seq,
    n.prior, n.route, n.note, n.sum,
    o.id, o.run_id, o.fingerprint, o.sum,
    r.thread, r.run_id, r.started_at, r.graph, r.fingerprint, r.mode, r.status, r.retry_count,
    r.previous_run_id, r.ended_at, r.input_digest, r.metadata, r.wake_at, r.owner, r.sum,
    rb.id, rb.head, rb.seq, rb.task, rb.payload, rb.sum,
    ra.id, ra.head, ra.seq, ra.task, ra.payload, ra.sum
FROM threads AS t
LEFT JOIN entries AS h
    ON h.id = (SELECT max(id) FROM entries WHERE id <= t.id * 4294967296 + 4294967295)
LEFT JOIN entries AS hp ON hp.id = h.id - 1
LEFT JOIN entries AS n
    ON n.id = (SELECT min(id) FROM entries WHERE id > max(t.id * 4294967296, coalesce(h.id, 0)))
LEFT JOIN entries AS np ON np.id = n.id - 1
LEFT JOIN origins AS o ON o.id = t.id * 4294967296 + h.origin
LEFT JOIN runs AS r ON r.thread = t.id AND r.run_id = o.run_id
LEFT JOIN results AS rb
    ON rb.id = (SELECT max(id) FROM results WHERE id <= t.id * 4294967296 + 4294967295)
LEFT JOIN results AS ra
    ON ra.id = (SELECT min(id) FROM results WHERE id > t.id * 4294967296 + 4294967295)
WHERE t.tenant = ? AND t.thread = ?
UNION ALL
SELECT
    NULL,
    b.id, b.tenant, b.thread, b.first, b.runs, b.failures, b.status, b.started_at, b.run_id,
    b.graph, b.ended_at, b.wake_at, b.questions, b.lane, b.due_at, b.worker, b.rank,
    b.waiting_topics, b.limit_key, b.messages, b.unread, b.sum,
    a.id, a.tenant, a.thread, a.first, a.runs, a.failures, a.status, a.started_at, a.run_id,
    a.graph, a.ended_at, a.wake_at, a.questions, a.lane, a.due_at, a.worker, a.rank,
    a.waiting_topics, a.limit_key, a.messages, a.unread, a.sum,
    (
        SELECT id FROM threads INDEXED BY threads_by_status
        WHERE tenant = ? AND thread = ? AND status IN (
            'queued', 'running', 'interrupted', 'sleeping',
            'completed', 'failed', 'cancelled', 'superseded'
        )
    ),
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (SELECT 1)
LEFT JOIN threads AS b INDEXED BY threads_by_name
    ON (b.tenant, b.thread) = (
        SELECT tenant, thread FROM threads WHERE (tenant, thread) < (?, ?)
        ORDER BY tenant DESC, thread DESC LIMIT 1
    )
LEFT JOIN threads AS a INDEXED BY threads_by_name
    ON (a.tenant, a.thread) = (
        SELECT tenant, thread FROM threads WHERE (tenant, thread) > (?, ?)
        ORDER BY tenant, thread LIMIT 1
    )
WHERE NOT EXISTS (SELECT 1 FROM threads WHERE tenant = ? AND thread = ?);

-- name: thread
-- A thread's row. If there is none: NULL, the rows beside its place, and what the other index finds.
SELECT
    id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM threads WHERE tenant = ? AND thread = ?
UNION ALL
SELECT
    NULL,
    b.id, b.tenant, b.thread, b.first, b.runs, b.failures, b.status, b.started_at, b.run_id,
    b.graph, b.ended_at, b.wake_at, b.questions, b.lane, b.due_at, b.worker, b.rank,
    b.waiting_topics, b.limit_key, b.messages, b.unread, b.sum,
    a.id, a.tenant, a.thread, a.first, a.runs, a.failures, a.status, a.started_at, a.run_id,
    a.graph, a.ended_at, a.wake_at, a.questions, a.lane, a.due_at, a.worker, a.rank,
    a.waiting_topics, a.limit_key, a.messages, a.unread, a.sum,
    (
        SELECT id FROM threads INDEXED BY threads_by_status
        WHERE tenant = ? AND thread = ? AND status IN (
            'queued', 'running', 'interrupted', 'sleeping',
            'completed', 'failed', 'cancelled', 'superseded'
        )
    )
FROM (SELECT 1)
LEFT JOIN threads AS b INDEXED BY threads_by_name
    ON (b.tenant, b.thread) = (
        SELECT tenant, thread FROM threads WHERE (tenant, thread) < (?, ?)
        ORDER BY tenant DESC, thread DESC LIMIT 1
    )
LEFT JOIN threads AS a INDEXED BY threads_by_name
    ON (a.tenant, a.thread) = (
        SELECT tenant, thread FROM threads WHERE (tenant, thread) > (?, ?)
        ORDER BY tenant, thread LIMIT 1
    )
WHERE NOT EXISTS (SELECT 1 FROM threads WHERE tenant = ? AND thread = ?);

-- name: present_thread
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads WHERE tenant = ? AND thread = ?;

-- name: thread_below
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads WHERE (tenant, thread) < (?, ?)
ORDER BY tenant DESC, thread DESC LIMIT 1;

-- name: thread_above
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads WHERE (tenant, thread) > (?, ?)
ORDER BY tenant, thread LIMIT 1;

-- name: new_thread
-- The last of the tenant's threads by change.
INSERT INTO threads (
    id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum, changed
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    1 + coalesce((
        SELECT changed FROM threads
        WHERE tenant = ? AND status IS NOT NULL ORDER BY changed DESC LIMIT 1
    ), 0)
);

-- name: put_thread
-- With a tenant, the thread also becomes the last of the tenant's threads by change.
UPDATE threads
SET
    first = ?, runs = ?, failures = ?, status = ?, started_at = ?, run_id = ?, graph = ?,
    ended_at = ?, wake_at = ?, questions = ?, lane = ?, due_at = ?, worker = ?, rank = ?,
    waiting_topics = ?, limit_key = ?, messages = ?, unread = ?, sum = ?,
    changed = CASE WHEN ? IS NULL THEN changed ELSE 1 + coalesce((
        SELECT changed FROM threads
        WHERE tenant = ? AND status IS NOT NULL ORDER BY changed DESC LIMIT 1
    ), 0) END
WHERE id = ?;

-- name: count_messages
-- In no index: a message that wakes nobody changes one page of this table.
UPDATE threads SET messages = ?, unread = ?, sum = ? WHERE id = ?;

-- name: drop_thread
DELETE FROM threads WHERE id = ?;

-- name: threads
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads
WHERE tenant = ? AND thread >= ? AND status IS NOT NULL
ORDER BY thread LIMIT ?;

-- name: threads_of_status
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads
WHERE tenant = ? AND status = ? AND status IS NOT NULL AND thread >= ?
ORDER BY thread LIMIT ?;

-- name: tagged_threads
-- A tag leads to the number of its thread; the list is in the order of the tags' key.
SELECT
    t.id, t.tenant, t.thread, t.first, t.runs, t.failures, t.status, t.started_at, t.run_id,
    t.graph, t.ended_at, t.wake_at, t.questions, t.lane, t.due_at, t.worker, t.rank,
    t.waiting_topics, t.limit_key, t.messages, t.unread, t.sum,
    g.sum
FROM tags AS g CROSS JOIN threads AS t ON t.id = g.id
WHERE g.tenant = ? AND g.tag = ? AND g.thread >= ?
ORDER BY g.thread LIMIT ?;

-- name: tag_below
SELECT tenant, tag, thread, id, sum FROM tags WHERE (tenant, tag, thread) < (?, ?, ?)
ORDER BY tenant DESC, tag DESC, thread DESC LIMIT 1;

-- name: tag_above
SELECT tenant, tag, thread, id, sum FROM tags WHERE (tenant, tag, thread) > (?, ?, ?)
ORDER BY tenant, tag, thread LIMIT 1;

-- name: tags_of
-- Of threads by name, a JSON list. The index names the rows: one whose key is damaged is not found by
-- it, and is NULL here, not left out.
SELECT w.value, g.tenant, g.tag, g.thread, g.id, g.sum
FROM json_each(?) AS w
CROSS JOIN threads AS t ON t.tenant = ? AND t.thread = w.value
CROSS JOIN tags AS n ON n.id = t.id
LEFT JOIN tags AS g ON g.tenant = n.tenant AND g.tag = n.tag AND g.thread = n.thread
ORDER BY n.tag;

-- name: put_tag
INSERT OR IGNORE INTO tags VALUES (?, ?, ?, ?, ?);

-- name: drop_tag
DELETE FROM tags WHERE tenant = ? AND tag = ? AND thread = ?;

-- name: drop_tags
DELETE FROM tags WHERE id = ?;

-- name: recent_threads
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum, changed
FROM threads
WHERE tenant = ? AND status IS NOT NULL AND (changed, thread) < (?, ?)
ORDER BY changed DESC, thread DESC LIMIT ?;

-- name: recent_threads_of_status
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum, changed
FROM threads
WHERE tenant = ? AND status = ? AND status IS NOT NULL AND (changed, thread) < (?, ?)
ORDER BY changed DESC, thread DESC LIMIT ?;

-- name: waking_threads
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum, wake_at
FROM threads
WHERE tenant = ? AND wake_at IS NOT NULL AND wake_at <= ? AND (wake_at, thread) > (?, ?)
ORDER BY wake_at, thread LIMIT ?;

-- name: recent_runs
SELECT
    t.id, t.tenant, t.thread, t.first, t.runs, t.failures, t.status, t.started_at, t.run_id,
    t.graph, t.ended_at, t.wake_at, t.questions, t.lane, t.due_at, t.worker, t.rank,
    t.waiting_topics, t.limit_key, t.messages, t.unread, t.sum,
    r.thread, r.run_id, r.started_at, r.graph, r.fingerprint, r.mode, r.status, r.retry_count,
    r.previous_run_id, r.ended_at, r.input_digest, r.metadata, r.wake_at, r.owner, r.sum,
    r.place, r.number
FROM runs AS r JOIN threads AS t ON t.id = r.thread
WHERE r.tenant = ? AND (r.place, r.thread, r.number) < (?, ?, ?)
ORDER BY r.place DESC, r.thread DESC, r.number DESC LIMIT ?;

-- name: recent_runs_of_status
SELECT
    t.id, t.tenant, t.thread, t.first, t.runs, t.failures, t.status, t.started_at, t.run_id,
    t.graph, t.ended_at, t.wake_at, t.questions, t.lane, t.due_at, t.worker, t.rank,
    t.waiting_topics, t.limit_key, t.messages, t.unread, t.sum,
    r.thread, r.run_id, r.started_at, r.graph, r.fingerprint, r.mode, r.status, r.retry_count,
    r.previous_run_id, r.ended_at, r.input_digest, r.metadata, r.wake_at, r.owner, r.sum,
    r.place, r.number
FROM runs AS r JOIN threads AS t ON t.id = r.thread
WHERE r.tenant = ? AND r.status = ? AND (r.place, r.thread, r.number) < (?, ?, ?)
ORDER BY r.place DESC, r.thread DESC, r.number DESC LIMIT ?;

-- name: due_threads
-- Of one lane, those that are due, in the order in which they became so.
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads
WHERE lane = ? AND worker = '' AND due_at IS NOT NULL AND due_at <= ?
ORDER BY due_at, tenant, thread LIMIT ?;

-- name: next_group
-- Of one lane, the first group behind another, and when its first thread is due.
SELECT tenant, limit_key, rank, due_at FROM threads
WHERE lane = ? AND worker = '' AND due_at IS NOT NULL AND (tenant, limit_key, rank) > (?, ?, ?)
ORDER BY tenant, limit_key, rank, due_at LIMIT 1;

-- name: count_in_group
SELECT count(*) FROM (
    SELECT 1 FROM threads
    WHERE lane = ? AND tenant = ? AND limit_key = ? AND rank = ? AND worker = ''
        AND due_at IS NOT NULL AND due_at <= ?
    LIMIT ?
);

-- name: due_in_group
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads
WHERE lane = ? AND tenant = ? AND limit_key = ? AND rank = ? AND worker = ''
    AND due_at IS NOT NULL AND due_at <= ?
ORDER BY due_at, thread LIMIT ?;

-- name: first_due
SELECT due_at FROM threads
WHERE lane = ? AND worker = '' AND due_at IS NOT NULL
ORDER BY due_at LIMIT 1;

-- name: claimed_threads
SELECT id, tenant, thread, first, runs, failures, status, started_at, run_id, graph, ended_at,
    wake_at, questions, lane, due_at, worker, rank,
    waiting_topics, limit_key, messages, unread, sum
FROM threads
WHERE worker = ? AND worker <> ''
ORDER BY tenant, thread;

-- name: count_claimed
SELECT count(*) FROM threads WHERE worker = ? AND worker <> '';

-- name: next_claimant
-- The least name above this one of a worker that has a thread.
SELECT worker FROM threads WHERE worker > ? AND worker <> '' ORDER BY worker LIMIT 1;

-- name: depths
SELECT
    lane, tenant,
    count(*) FILTER (WHERE worker = '' AND due_at <= ?),
    count(*) FILTER (WHERE worker = '' AND due_at > ?),
    count(*) FILTER (WHERE worker <> ''),
    min(due_at) FILTER (WHERE worker = '' AND due_at <= ?)
FROM (
    SELECT lane, tenant, worker, due_at FROM threads WHERE worker = '' AND due_at IS NOT NULL
    UNION ALL
    SELECT lane, tenant, worker, due_at FROM threads WHERE worker <> ''
)
WHERE lane <> ''
GROUP BY lane, tenant ORDER BY lane, tenant;

-- name: next_lane
-- The least lane above this one that has a thread with a time and no worker.
SELECT lane FROM threads INDEXED BY threads_by_due
WHERE lane > ? AND worker = '' AND due_at IS NOT NULL
ORDER BY lane LIMIT 1;

-- name: message
SELECT id, topic, mark, sent_at, consumed, payload, sum FROM mailbox WHERE id = ?;

-- name: message_and_thread
SELECT m.id, m.topic, m.mark, m.sent_at, m.consumed, m.payload, m.sum,
    t.id, t.tenant, t.thread, t.first, t.runs, t.failures, t.status, t.started_at, t.run_id,
    t.graph, t.ended_at, t.wake_at, t.questions, t.lane, t.due_at, t.worker, t.rank,
    t.waiting_topics, t.limit_key, t.messages, t.unread, t.sum
FROM threads AS t JOIN mailbox AS m WHERE t.id = ? AND m.id = ?;

-- name: message_with_mark
SELECT id, topic, mark, sent_at, consumed, payload, sum FROM mailbox
WHERE thread = ? AND mark = ?;

-- name: unread_of_topic
SELECT id, topic, mark, sent_at, consumed, payload, sum FROM mailbox INDEXED BY mailbox_by_topic
WHERE thread = ? AND topic = ? AND consumed IS NULL AND id > ?
ORDER BY id LIMIT ?;

-- name: unread_ids_of_topic
SELECT id FROM mailbox INDEXED BY mailbox_by_topic
WHERE thread = ? AND topic = ? AND consumed IS NULL AND id > ?
ORDER BY id LIMIT ?;

-- name: unread_ids
SELECT id FROM mailbox INDEXED BY mailbox_by_topic
WHERE thread = ? AND consumed IS NULL AND id > ?
ORDER BY id LIMIT ?;

-- name: count_unread
SELECT count(*) FROM mailbox INDEXED BY mailbox_by_topic WHERE thread = ? AND consumed IS NULL;

-- name: messages
SELECT id, topic, mark, sent_at, consumed, payload, sum FROM mailbox WHERE id > ? ORDER BY id;

-- name: message_below
SELECT id, topic, mark, sent_at, consumed, payload, sum FROM mailbox
WHERE id < ? ORDER BY id DESC LIMIT 1;

-- name: put_message
INSERT INTO mailbox (id, topic, mark, sent_at, consumed, payload, sum) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: replace_message
REPLACE INTO mailbox (id, topic, mark, sent_at, consumed, payload, sum)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: consume
UPDATE mailbox SET consumed = ?, payload = ?, sum = ? WHERE id = ?;

-- name: drop_consumed
DELETE FROM mailbox WHERE id BETWEEN ? AND ? AND consumed < ?;

-- name: drop_messages
DELETE FROM mailbox WHERE id BETWEEN ? AND ?;

-- name: limits
SELECT graph, tenant, key, concurrency, rate, period, paused, begun, used, sum
FROM limits ORDER BY graph, tenant, key;

-- name: put_limit
INSERT OR REPLACE INTO limits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_limit
DELETE FROM limits WHERE graph = ? AND tenant = ? AND key = ?;

-- name: key_meter
SELECT graph, tenant, limit_key, begun, used, sum FROM key_meters
WHERE graph = ? AND tenant = ? AND limit_key = ? AND until > ?;

-- name: put_key_meter
INSERT OR REPLACE INTO key_meters VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: extend_key_meters
-- After the period of a limit was changed.
UPDATE key_meters SET until = begun + ?
WHERE graph = ? AND tenant = ? AND limit_key >= ? AND limit_key < ?;

-- name: drop_key_meters
DELETE FROM key_meters WHERE until <= ?;

-- name: bucket
SELECT tenant, name, rate, period, burst, promised, granted, sum FROM buckets
WHERE tenant IN (?, '') AND name = ? ORDER BY tenant DESC LIMIT 1;

-- name: buckets
SELECT tenant, name, rate, period, burst, promised, granted, sum FROM buckets
ORDER BY name, tenant;

-- name: put_bucket
INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_bucket
DELETE FROM buckets WHERE tenant = ? AND name = ? RETURNING 1;

-- name: bucket_take
SELECT tenant, name, mark, amount, ready_at, granted_at, sum FROM bucket_takes
WHERE tenant = ? AND name = ? AND mark = ?;

-- name: put_bucket_take
INSERT OR REPLACE INTO bucket_takes VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop_bucket_takes
DELETE FROM bucket_takes WHERE tenant = ? AND name = ? AND ready_at < ?;

-- name: count_bucket_waiting
SELECT count(*) FROM bucket_takes WHERE tenant = ? AND name = ? AND granted_at IS NULL;

-- name: bucket_waiting
SELECT tenant, name, mark, amount, ready_at, granted_at, sum FROM bucket_takes
WHERE granted_at IS NULL AND tenant IN (?, '') AND mark >= ? AND mark < ?
ORDER BY ready_at, name;

-- name: count_running
SELECT lane, tenant, limit_key, count(*) FROM threads WHERE worker <> ''
GROUP BY lane, tenant, limit_key;

-- name: put_worker
INSERT OR REPLACE INTO workers (
    id, beat_at, started_at, capacity, draining, owner, lanes, sum, silent
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: workers
SELECT id, beat_at, started_at, capacity, draining, owner, lanes, sum, silent
FROM workers ORDER BY id;

-- name: is_silent
SELECT 1 FROM workers WHERE beat_at < ? - coalesce(?, silent);

-- name: is_known
SELECT 1 FROM workers WHERE id = ? AND beat_at >= ? - coalesce(?, silent);

-- name: drop_worker
DELETE FROM workers WHERE id = ?;

-- name: drop_silent
DELETE FROM workers WHERE beat_at < ? - coalesce(?, silent);

-- name: clock
SELECT seen FROM clock;

-- name: put_clock
UPDATE clock SET seen = max(seen, ?);

-- name: memory
SELECT * FROM memories WHERE tenant = ? AND path = ? AND key = ?;

-- name: put_memory
INSERT INTO memories VALUES (
    NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
);

-- name: replace_memory
UPDATE memories SET
    value = ?, words = ?, vectors = ?, model = ?, version = ?, created_at = ?, updated_at = ?, ttl = ?,
    expires_at = ?, thread = ?, seq = ?, sum = ?
WHERE id = ?;

-- name: drop_memory
DELETE FROM memories WHERE id = ?;

-- name: put_memory_word
INSERT OR REPLACE INTO memory_words VALUES (?, ?, ?, ?);

-- name: drop_memory_word
DELETE FROM memory_words WHERE tenant = ? AND word = ? AND path = ? AND key = ?;

-- name: memories
-- Items from a path on, except those up to a key there, below a path.
SELECT * FROM memories
WHERE tenant = ?1 AND path >= ?2 AND path < ?4 AND (path > ?2 OR key > ?3)
    AND (expires_at IS NULL OR expires_at > ?5)
ORDER BY path, key LIMIT ?6;

-- name: memory_path
-- The first path that has an item, from above one, below another.
SELECT path FROM memories
WHERE tenant = ? AND path > ? AND path < ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY path LIMIT 1;

-- name: memories_with_words
SELECT m.* FROM (
    SELECT path, key, count(*) AS found FROM memory_words
    WHERE tenant = ?1 AND word IN (SELECT value FROM json_each(?2)) AND path >= ?3 AND path < ?4
    GROUP BY path, key
) AS w JOIN memories AS m ON m.tenant = ?1 AND m.path = w.path AND m.key = w.key
WHERE m.expires_at IS NULL OR m.expires_at > ?5
ORDER BY w.found DESC, m.path, m.key LIMIT ?6;

-- name: memories_of_subject
SELECT * FROM memories WHERE tenant = ? AND subject = ?;

-- name: memories_over
SELECT * FROM memories WHERE tenant = ? AND expires_at <= ? LIMIT ?;
