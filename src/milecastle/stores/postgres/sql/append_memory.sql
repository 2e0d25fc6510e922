
    RETURNING 1
), {given}, written AS (
    {insert}
)
SELECT FROM stepped