NOT EXISTS (
    -- A result that is there stays: the transaction of the other one was committed.
    SELECT FROM {schema}.results AS known
    WHERE known.shard = $1 AND known.tenant = $2 AND known.thread = $3
        AND known.seq >= head.seq - head.held AND known.digest = ANY ($5)
)
