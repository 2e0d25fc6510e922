-- A database may be one of several behind one map: then these tables say which shards it has. In
-- every other database they are empty, and nothing reads them after it was opened.

-- One row. id: the map, the same in all of its databases. name: that of this database in the map.
-- is_complete: all databases of the map were initialised.
CREATE TABLE {schema}.membership (
    version bigint NOT NULL,
    is_complete boolean NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
);

-- A shard that this database has, or had, or is about to have. Only those that are 'here' are
-- written, claimed and listed. leftovers: threads of this shard may be in the tables, though it is
-- not here. move, destination: of the last move. Writers lock the row of their shard: room in each
-- page, so that this writes it where it was.
CREATE TABLE {schema}.placements (
    version bigint NOT NULL,
    move bigint,
    shard smallint NOT NULL,
    leftovers boolean NOT NULL DEFAULT false,
    state text COLLATE "C" NOT NULL CHECK (state IN ('here', 'arriving', 'moved')),
    destination text COLLATE "C",
    PRIMARY KEY (shard)
) WITH (fillfactor = 50);
CREATE INDEX placements_with_leftovers ON {schema}.placements (shard) WHERE leftovers;

-- Null in a database that belongs to no map.
ALTER TABLE {schema}.threads ADD COLUMN shard smallint;
