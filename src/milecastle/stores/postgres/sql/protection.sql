-- Who we are, and how each table is protected from us.
SELECT
    known.relname,
    known.relrowsecurity AND known.relforcerowsecurity,
    pg_has_role(known.relowner, 'USAGE'),
    EXISTS (SELECT FROM pg_policy WHERE polrelid = known.oid AND polname = 'tenants'),
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user),
    row_security_active(known.oid)
FROM pg_class AS known
WHERE known.relnamespace = to_regnamespace(quote_ident(%(name)s))
    AND known.relkind = 'r' AND known.relname <> 'migrations'
ORDER BY known.relname
