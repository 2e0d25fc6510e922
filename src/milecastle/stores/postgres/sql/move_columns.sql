SELECT attname::text
FROM pg_attribute
WHERE attrelid = (quote_ident(%(schema)s) || '.' || quote_ident(%(table)s))::regclass
    AND attnum > 0 AND NOT attisdropped
ORDER BY attname
