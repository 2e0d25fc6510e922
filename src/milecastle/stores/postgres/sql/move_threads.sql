SELECT tenant, thread, true FROM {schema}.threads WHERE shard = %(shard)s
