SELECT tenant, thread FROM {schema}.threads WHERE shard = %(shard)s
