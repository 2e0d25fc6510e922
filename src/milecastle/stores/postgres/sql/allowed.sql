-- Of the locked threads those whose shard is here. One that is being moved is left out: nobody waits.
allowed AS MATERIALIZED (
    SELECT locked.place
    FROM locked JOIN {schema}.placements AS placed ON placed.shard = locked.shard
    WHERE placed.state = 'here'
    FOR KEY SHARE OF placed SKIP LOCKED
)
