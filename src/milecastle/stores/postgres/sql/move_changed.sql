-- The threads of a shard of which a row was written since a moment. Waiting inputs and tags change
-- with their line.
SELECT tenant, thread FROM {schema}.threads
WHERE shard = %(shard)s AND age(xmin) <= age(%(since)s::xid)
UNION
SELECT tenant, thread FROM {schema}.entries
WHERE shard = %(shard)s AND age(xmin) <= age(%(since)s::xid)
UNION
SELECT tenant, thread FROM {schema}.runs
WHERE shard = %(shard)s AND age(xmin) <= age(%(since)s::xid)
UNION
SELECT tenant, thread FROM {schema}.results
WHERE shard = %(shard)s AND age(xmin) <= age(%(since)s::xid)
