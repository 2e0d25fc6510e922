SELECT shard, min(thread) FROM {schema}.threads GROUP BY shard
