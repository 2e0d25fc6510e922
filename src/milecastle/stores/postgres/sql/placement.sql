SELECT
    current_setting('transaction_isolation'),
    (SELECT state FROM {schema}.placements WHERE shard = %(shard)s),
    (SELECT destination FROM {schema}.placements WHERE shard = %(shard)s),
    (SELECT version FROM {schema}.membership)
