-- The threads of a shard of which a row was written since a moment. Waiting inputs change with their
-- line; tags do not.
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
UNION
SELECT tenant, thread FROM {schema}.tags AS tag JOIN {schema}.threads AS line USING (tenant, thread)
WHERE line.shard = %(shard)s AND age(tag.xmin) <= age(%(since)s::xid)
