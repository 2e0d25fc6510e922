-- Draw numbers until none of a waiting input is left. Others may draw some meanwhile.
SELECT count(nextval(pg_get_serial_sequence(quote_ident(%(name)s) || '.inputs', 'number')))
FROM generate_series(1, (
    SELECT max(number) - coalesce(
        pg_sequence_last_value(
            pg_get_serial_sequence(quote_ident(%(name)s) || '.inputs', 'number')::regclass
        ), 0
    )
    FROM {schema}.inputs
))
