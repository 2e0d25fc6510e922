-- An idempotency key is looked up among all runs of a thread. The runs of subgraphs have none.
CREATE INDEX runs_by_input ON {schema}.runs (shard, tenant, thread, input_digest, number)
    WHERE input_digest <> '';
