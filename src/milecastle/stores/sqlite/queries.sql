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

-- name: newest_origin
SELECT id, run_id, fingerprint, sum FROM origins WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1;

-- name: drop_origins
DELETE FROM origins WHERE id BETWEEN ? AND ?;

-- name: put_result
INSERT INTO results VALUES (?, ?, ?, ?, ?, ?);

-- name: results
SELECT id, head, seq, task, payload, sum FROM results WHERE id > ? ORDER BY id;

-- name: result_below
SELECT id, head, seq, task, payload, sum FROM results WHERE id < ? ORDER BY id DESC LIMIT 1;

-- name: result_above
SELECT id, head, seq, task, payload, sum FROM results WHERE id > ? ORDER BY id LIMIT 1;

-- name: drop_results
DELETE FROM results WHERE id BETWEEN ? AND ?;

-- name: put_run
INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: run
SELECT * FROM runs WHERE thread = ? AND run_id = ?;

-- name: run_below
SELECT * FROM runs WHERE (thread, run_id) < (?, ?) ORDER BY thread DESC, run_id DESC LIMIT 1;

-- name: run_above
SELECT * FROM runs WHERE (thread, run_id) > (?, ?) ORDER BY thread, run_id LIMIT 1;

-- name: runs
SELECT * FROM runs WHERE thread = ? ORDER BY started_at DESC, run_id DESC LIMIT ?;

-- name: count_runs
SELECT count(sum) FROM runs WHERE thread = ?;

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

-- name: thread
SELECT * FROM threads WHERE tenant = ? AND thread = ?;

-- name: thread_below
SELECT * FROM threads WHERE (tenant, thread) < (?, ?)
ORDER BY tenant DESC, thread DESC LIMIT 1;

-- name: thread_above
SELECT * FROM threads WHERE (tenant, thread) > (?, ?)
ORDER BY tenant, thread LIMIT 1;

-- name: thread_by_status
-- The other way to a thread that has a run.
SELECT id FROM threads INDEXED BY threads_by_status
WHERE tenant = ? AND thread = ? AND status IN (
    'running', 'interrupted', 'sleeping', 'completed', 'failed', 'cancelled', 'superseded'
);

-- name: new_thread
INSERT INTO threads (tenant, thread, first, runs, failures, sum) VALUES (?, ?, 1, 0, 0, 0);

-- name: put_thread
UPDATE threads
SET first = ?, runs = ?, failures = ?, status = ?, started_at = ?, run_id = ?, sum = ?
WHERE id = ?;

-- name: drop_thread
DELETE FROM threads WHERE id = ?;

-- name: threads
SELECT * FROM threads
WHERE tenant = ? AND thread >= ? AND status IS NOT NULL
ORDER BY thread LIMIT ?;

-- name: threads_of_status
SELECT * FROM threads
WHERE tenant = ? AND status = ? AND status IS NOT NULL AND thread >= ?
ORDER BY thread LIMIT ?;
