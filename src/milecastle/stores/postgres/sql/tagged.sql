EXISTS (
    SELECT FROM {schema}.threads AS line
    WHERE line.tenant = known.tenant AND line.thread = known.thread AND {here}
)
