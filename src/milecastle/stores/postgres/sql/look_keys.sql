-- What is due of some tenants, by limit key and rank: in each range of keys so many groups. Visited as
-- in look.sql, and beyond the last visit until one is found: other ranges do not show these threads.
WITH present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), shut AS MATERIALIZED (
    SELECT *
    FROM unnest(%(shut_lanes)s::text[], %(shut_tenants)s::text[], %(shut_keys)s::text[])
        AS given (lane, tenant, limit_key)
), {rates}
SELECT asked.lane, asked.tenant, found.limit_key, found.rank, counted.count
FROM unnest(
    %(lanes)s::text[], %(tenants)s::text[], %(after)s::text[], %(until)s::text[],
    %(graphs)s::text[]
) AS asked (lane, tenant, after, until, graph), LATERAL (
    WITH RECURSIVE visit AS (
        SELECT first.*, 0 AS found, 0 AS number
        FROM (VALUES (asked.after COLLATE "C", 2147483647, false, true))
            AS first (limit_key, rank, is_due, is_shut)
        UNION ALL
        SELECT
            next.limit_key, next.rank, next.due_at <= (SELECT now FROM present),
            (asked.lane, asked.tenant, next.limit_key) IN (SELECT * FROM shut)
            OR (asked.lane, '', next.limit_key) IN (SELECT * FROM shut)
            OR {full_next},
            visit.found + (visit.is_due AND NOT visit.is_shut)::integer, visit.number + 1
        FROM visit, LATERAL (
            SELECT limit_key, rank, due_at
            FROM {schema}.threads
            WHERE lane = asked.lane AND tenant = asked.tenant AND worker = ''
                AND due_at IS NOT NULL AND limit_key <= asked.until AND (limit_key, rank) > (
                    visit.limit_key, CASE WHEN visit.is_shut THEN 2147483647 ELSE visit.rank END
                ) AND {here}
            ORDER BY limit_key, rank, due_at
            LIMIT 1
        ) AS next
        WHERE visit.number < %(visits)s OR visit.found = 0
    )
    SELECT limit_key, rank FROM visit WHERE is_due AND NOT is_shut LIMIT %(each)s::bigint
) AS found, LATERAL (
    SELECT count(*)
    FROM (
        SELECT
        FROM {schema}.threads
        WHERE lane = asked.lane AND tenant = asked.tenant AND limit_key = found.limit_key
            AND rank = found.rank AND worker = '' AND due_at IS NOT NULL
            AND due_at <= (SELECT now FROM present) AND {here}
        LIMIT %(limit)s::bigint
    ) AS first
) AS counted
