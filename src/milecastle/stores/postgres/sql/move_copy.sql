COPY (
    SELECT {columns}
    FROM {table} AS known
    JOIN unnest(%(tenants)s::text[], %(threads)s::text[]) AS asked (tenant, thread)
        USING (tenant, thread)
) TO STDOUT (FORMAT binary)
