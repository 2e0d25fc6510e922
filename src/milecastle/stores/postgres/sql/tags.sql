, dropped_tag AS (
    DELETE FROM {schema}.tags AS known
    USING passed JOIN unnest($36, $37) AS given (batch, tag) ON given.batch = passed.number
    WHERE known.tenant = passed.tenant AND known.tag = given.tag
        AND known.thread = passed.thread
), kept_tag AS (
    INSERT INTO {schema}.tags (tenant, tag, thread)
    SELECT passed.tenant, given.tag, passed.thread
    FROM unnest($38, $39) AS given (batch, tag) JOIN passed ON passed.number = given.batch
    WHERE passed.is_listed
    ON CONFLICT (tenant, tag, thread) DO NOTHING
)
