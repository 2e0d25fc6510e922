SELECT tenant, thread FROM {schema}.threads WHERE shard IS NULL LIMIT %(limit)s
