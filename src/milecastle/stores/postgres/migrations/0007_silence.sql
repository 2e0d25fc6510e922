-- silent: after how many microseconds without a heartbeat a worker is gone. Workers of earlier versions
-- do not say; this was their limit.
ALTER TABLE {schema}.workers ADD COLUMN silent bigint NOT NULL DEFAULT 15000000;
