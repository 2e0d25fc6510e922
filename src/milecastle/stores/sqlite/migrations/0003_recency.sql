-- Threads and runs of a tenant are listed in the order in which they were committed.

-- changed: grows with each commit that writes the thread's line; 0 if that was before this
-- migration. Not under the checksum: a wrong one puts a sound row into another place.
ALTER TABLE threads ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX threads_by_change ON threads (tenant, changed, thread) WHERE status IS NOT NULL;
CREATE INDEX threads_by_status_and_change ON threads (tenant, status, changed, thread)
    WHERE status IS NOT NULL;
CREATE INDEX threads_by_wake ON threads (tenant, wake_at, thread) WHERE wake_at IS NOT NULL;

-- place: grows with each run of the tenant that is recorded for the first time; 0 if that was
-- before this migration. tenant: that of the thread. Neither is under the checksum.
ALTER TABLE runs ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
UPDATE runs
SET tenant = coalesce((SELECT tenant FROM threads WHERE threads.id = runs.thread), '');
CREATE INDEX runs_by_place ON runs (tenant, place, thread, number);
CREATE INDEX runs_by_status_and_place ON runs (tenant, status, place, thread, number);

PRAGMA user_version = 3;
