-- silent: after how many microseconds without a heartbeat a worker is gone. It is not under the
-- checksum.
ALTER TABLE workers ADD COLUMN silent INTEGER NOT NULL DEFAULT 15000000;

-- One row. seen: a time that has passed. The clock of the machine may be set back; that of the store
-- does not go back.
CREATE TABLE clock (seen INTEGER NOT NULL);
INSERT INTO clock VALUES (0);

PRAGMA user_version = 6;
