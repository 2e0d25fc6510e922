-- For one transaction: what is PostgreSQL's own is named without its schema, all else with it.
SELECT
    set_config('search_path', 'pg_catalog, pg_temp', true),
    set_config('quote_all_identifiers', 'off', true)
