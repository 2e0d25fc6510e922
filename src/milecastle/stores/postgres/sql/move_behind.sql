-- By how much waiting inputs are ahead of the number that was drawn last.
SELECT coalesce(max(number), 0) - coalesce(
    pg_sequence_last_value(
        pg_get_serial_sequence(quote_ident(%(name)s) || '.inputs', 'number')::regclass
    ), 0
)
FROM {schema}.inputs
