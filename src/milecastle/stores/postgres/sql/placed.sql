EXISTS (
    -- After a wait for whoever moves the shard, its row is looked at again: not so, if the whole
    -- transaction saw the same, which is therefore refused.
    SELECT FROM {schema}.placements AS placed
    WHERE placed.shard = {shard} AND placed.state = 'here'
        AND current_setting('transaction_isolation') = 'read committed'
    FOR KEY SHARE
)
