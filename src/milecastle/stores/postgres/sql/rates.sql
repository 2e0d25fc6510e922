rates AS MATERIALIZED (
    SELECT graph, tenant, key FROM {schema}.limits WHERE key <> '' AND rate IS NOT NULL
)