-- What the server promises, and whether the schema has our tables: those of a version, or those
-- that no release ever wrote.
SELECT
    current_setting('server_encoding'),
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    to_regclass(quote_ident(%(name)s) || '.format') IS NOT NULL,
    to_regclass(quote_ident(%(name)s) || '.migrations') IS NOT NULL
        AND to_regclass(quote_ident(%(name)s) || '.entries') IS NOT NULL
