WITH member AS (
    INSERT INTO {schema}.membership (id, name, version, is_complete)
    VALUES (%(id)s, %(name)s, %(version)s, %(is_complete)s)
)
INSERT INTO {schema}.placements (shard, state, version)
SELECT shard, 'here', %(version)s FROM unnest(%(shards)s::smallint[]) AS given (shard)
