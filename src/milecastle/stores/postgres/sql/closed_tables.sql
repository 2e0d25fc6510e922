-- How many tables of a schema this role may not use in every way that a store does.
SELECT count(*) FILTER (WHERE NOT has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(name)s AND c.relkind IN ('r', 'p')
