-- What the server promises, and which migrations the schema has had.
SELECT
    current_setting('server_encoding'),
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    to_regclass(quote_ident(%(name)s) || '.migrations') IS NOT NULL
