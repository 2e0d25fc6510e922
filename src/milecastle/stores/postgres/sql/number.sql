UPDATE {schema}.threads AS known
SET shard = given.shard
FROM unnest(%(tenants)s::text[], %(threads)s::text[], %(shards)s::smallint[])
    AS given (tenant, thread, shard)
WHERE known.tenant = given.tenant AND known.thread = given.thread
