-- From path to path: as many index steps as paths, however many items each has.
WITH RECURSIVE found (path, number) AS (
    (
        SELECT path, 1
        FROM {schema}.memories
        WHERE tenant = %(tenant)s AND path > %(after)s AND path < %(end)s AND {live}
        ORDER BY path
        LIMIT 1
    )
    UNION ALL
    SELECT next.path, found.number + 1
    FROM found, LATERAL (
        SELECT path
        FROM {schema}.memories
        WHERE tenant = %(tenant)s AND memories.path > found.path AND memories.path < %(end)s
            AND {live}
        ORDER BY path
        LIMIT 1
    ) AS next
    WHERE found.number < %(limit)s
)
SELECT path FROM found ORDER BY path LIMIT %(limit)s
