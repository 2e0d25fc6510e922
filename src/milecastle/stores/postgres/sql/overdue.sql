-- The lanes whose first due thread was due before a time: one look at the index for each lane.
WITH RECURSIVE named AS (
    (
        SELECT lane FROM {schema}.threads
        WHERE lane > '' AND worker = '' AND due_at IS NOT NULL AND {here}
        ORDER BY lane
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT known.lane
        FROM {schema}.threads AS known
        WHERE known.lane > named.lane AND known.worker = '' AND known.due_at IS NOT NULL
            AND {here}
        ORDER BY known.lane
        LIMIT 1
    )
    FROM named
    WHERE named.lane IS NOT NULL
)
SELECT named.lane
FROM named
WHERE named.lane IS NOT NULL AND (
    SELECT first.due_at
    FROM {schema}.threads AS first
    WHERE first.lane = named.lane AND first.worker = '' AND first.due_at IS NOT NULL
        AND {here}
    ORDER BY first.due_at
    LIMIT 1
) < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - %(age)s::bigint
ORDER BY named.lane
