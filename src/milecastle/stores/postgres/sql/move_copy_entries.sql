COPY (
    SELECT {columns}
    FROM {table} AS known
    JOIN unnest(%(tenants)s::text[], %(threads)s::text[], %(after)s::bigint[])
        AS asked (tenant, thread, after) USING (tenant, thread)
    WHERE known.shard = %(shard)s AND known.seq > asked.after
) TO STDOUT (FORMAT binary)
