-- How each table is protected from us, and from whatever role this session may become. SET ROLE
-- asks what the session's role is a member of, whether or not it inherits from it.
SELECT
    known.relname,
    row_security_active(known.oid),
    (
        SELECT rolname FROM pg_roles
        WHERE (rolsuper OR rolbypassrls) AND pg_has_role(session_user, oid, 'MEMBER')
        ORDER BY rolname <> session_user, rolname LIMIT 1
    ),
    (
        SELECT rolname FROM pg_roles
        WHERE oid = known.relowner AND pg_has_role(session_user, oid, 'MEMBER')
    ),
    known.relrowsecurity AND known.relforcerowsecurity AND (
        -- The policy that secure.sql makes, and no other: those that permit add up.
        SELECT bool_and(
            polname = 'tenants' AND polpermissive AND polcmd = '*' AND polroles = ARRAY[0::oid]
            AND polwithcheck IS NULL AND pg_get_expr(polqual, polrelid)
                = '(tenant = current_setting(''milecastle.tenant''::text, true))'
        )
        FROM pg_policy WHERE polrelid = known.oid
    )
FROM pg_class AS known
WHERE known.relnamespace = to_regnamespace(quote_ident(%(name)s))
    AND known.relkind IN ('r', 'p') AND known.relname NOT IN (
        'format', 'workers', 'limits', 'key_meters', 'membership', 'placements'
    )
ORDER BY known.relname
