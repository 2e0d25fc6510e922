COPY (
    SELECT {columns}
    FROM {table} AS known
    JOIN unnest(%(tenants)s::text[], %(threads)s::text[]) AS asked (tenant, thread)
        USING (tenant, thread)
    WHERE known.shard = %(shard)s
) TO STDOUT (FORMAT binary)
