-- Inputs that are enqueued from now on come behind those that were moved. Nobody draws a number
-- while the table is locked.
LOCK TABLE {schema}.inputs IN SHARE ROW EXCLUSIVE MODE;
SELECT setval(
    pg_get_serial_sequence(quote_ident({name}) || '.inputs', 'number'), found.number
)
FROM (SELECT max(number) AS number FROM {schema}.inputs) AS found
WHERE found.number > coalesce(
    pg_sequence_last_value(
        pg_get_serial_sequence(quote_ident({name}) || '.inputs', 'number')::regclass
    ), 0
);
