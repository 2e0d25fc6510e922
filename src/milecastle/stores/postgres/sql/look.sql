-- What is due in some lanes, by lane, tenant, limit key and rank: how many of each, at most as many
-- as asked for. Nothing is locked, so it is a hint: take.sql decides.
--
-- If all that is due fits into the limit, it is counted and that is all. Otherwise it is to be
-- shared, and tenants are visited one after the other, each lane beginning behind the tenant that
-- was served there last: of a group of threads, the first tells whether any is due, so that those
-- that sleep are not read. Of a tenant with limit keys, the visits end with the first group that may
-- be taken: look_keys.sql looks at the others. If these are not enough for one thread of each, those that have waited
-- longest are added, and so many of each are counted that four times the limit is seen.
--
-- Tenants and keys from which limits let nobody claim are left out, at the price of one visit each:
-- shut has the tenant and an empty key, or a key and an empty tenant if it holds for all. Of what has
-- waited longest, and of everything if it fits, they are only not returned: reading past all
-- that they have due would cost more than a claim may. A value that has used all of a rate by key is
-- left out like these, and found when it is visited.
--
-- The last column says whether limits cover these lanes: then the claim looks again, and nobody else
-- does meanwhile.
-- Visits are numbered from 1, and those that have waited longest have 0. The last possible number
-- says where the visits to a lane ended before the lane did; nothing may be due there.
WITH present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), shut AS MATERIALIZED (
    SELECT *
    FROM unnest(%(shut_lanes)s::text[], %(shut_tenants)s::text[], %(shut_keys)s::text[])
        AS given (lane, tenant, limit_key)
), {rates}, front AS MATERIALIZED (
    SELECT
        asked.lane, first.tenant, first.limit_key, first.rank,
        (asked.lane, first.tenant, '') NOT IN (SELECT * FROM shut)
            AND (asked.lane, first.tenant, first.limit_key) NOT IN (SELECT * FROM shut)
            AND (asked.lane, '', first.limit_key) NOT IN (SELECT * FROM shut)
            AND NOT {full_first} AS is_open
    FROM unnest(%(lanes)s::text[], %(graphs)s::text[]) AS asked (lane, graph), LATERAL (
        SELECT tenant, limit_key, rank, due_at
        FROM {schema}.threads
        WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
            AND due_at <= (SELECT now FROM present) AND {here}
        ORDER BY due_at
        LIMIT %(limit)s::bigint + 1
    ) AS first
    ORDER BY first.due_at
    LIMIT %(limit)s::bigint + 1
), visited AS MATERIALIZED (
    SELECT asked.lane, found.*
    FROM unnest(
        %(lanes)s::text[], %(after_tenants)s::text[], %(after_keys)s::text[], %(graphs)s::text[]
    ) AS asked (lane, tenant, limit_key, graph), LATERAL (
        WITH RECURSIVE visit AS (
            (
                SELECT tenant, limit_key, rank, due_at, 1 AS number
                FROM {schema}.threads
                WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
                    AND (tenant, limit_key, rank) > (asked.tenant, asked.limit_key, 2147483647)
                    AND {here}
                ORDER BY tenant, limit_key, rank, due_at
                LIMIT 1
            )
            UNION ALL
            SELECT next.tenant, next.limit_key, next.rank, next.due_at, visit.number + 1
            FROM visit, LATERAL (
                SELECT
                    (asked.lane, visit.tenant, '') IN (SELECT * FROM shut) AS tenant,
                    (asked.lane, visit.tenant, visit.limit_key) IN (SELECT * FROM shut)
                    OR (asked.lane, '', visit.limit_key) IN (SELECT * FROM shut)
                    OR {full_visit} AS limit_key
            ) AS is_shut, LATERAL (
                SELECT
                    CASE
                        WHEN is_shut.tenant THEN '~'
                        WHEN is_shut.limit_key OR visit.due_at > (SELECT now FROM present)
                        THEN visit.limit_key
                        ELSE '~'
                    END AS limit_key,
                    CASE
                        WHEN is_shut.tenant OR is_shut.limit_key OR (
                            visit.limit_key <> '~' AND visit.due_at <= (SELECT now FROM present)
                        ) THEN 2147483647
                        ELSE visit.rank
                    END AS rank
            ) AS behind, LATERAL (
                SELECT tenant, limit_key, rank, due_at
                FROM {schema}.threads
                WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
                    AND (tenant, limit_key, rank) > (visit.tenant, behind.limit_key, behind.rank)
                    AND {here}
                ORDER BY tenant, limit_key, rank, due_at
                LIMIT 1
            ) AS next
            WHERE visit.number < %(visits)s
        )
        SELECT tenant, limit_key, rank, number
        FROM visit
        WHERE number = %(visits)s OR (
            due_at <= (SELECT now FROM present)
            AND (asked.lane, tenant, '') NOT IN (SELECT * FROM shut)
            AND (asked.lane, tenant, visit.limit_key) NOT IN (SELECT * FROM shut)
            AND (asked.lane, '', visit.limit_key) NOT IN (SELECT * FROM shut)
            AND NOT {full_visit}
        )
        LIMIT %(limit)s::bigint + 1
    ) AS found
    WHERE (SELECT count(*) FROM front) > %(limit)s::bigint
), listed AS MATERIALIZED (
    SELECT lane, tenant, limit_key, rank, number FROM visited
    UNION ALL
    SELECT lane, tenant, limit_key, rank, 0
    FROM front
    WHERE (SELECT count(*) FROM front) > %(limit)s::bigint
        AND (SELECT count(*) FROM visited) <= %(limit)s::bigint
        AND is_open
    GROUP BY lane, tenant, limit_key, rank
), share AS (
    SELECT 1 + 4 * %(limit)s::bigint / count(*) AS count FROM listed HAVING count(*) > 0
)
SELECT found.*, EXISTS (
    SELECT FROM {schema}.limits WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
)
FROM (
    SELECT lane, tenant, limit_key, rank, count(*), NULL::integer AS number
    FROM front
    WHERE (SELECT count(*) FROM front) <= %(limit)s::bigint AND is_open
    GROUP BY lane, tenant, limit_key, rank
    UNION ALL
    SELECT lane, tenant, limit_key, rank, 1, number
    FROM visited
    WHERE (SELECT count(*) FROM visited) > %(limit)s::bigint
    UNION ALL
    SELECT
        listed.lane, listed.tenant, listed.limit_key, listed.rank, counted.count, listed.number
    FROM listed, share, LATERAL (
        SELECT count(*)
        FROM (
            SELECT
            FROM {schema}.threads
            WHERE lane = listed.lane AND tenant = listed.tenant
                AND limit_key = listed.limit_key AND rank = listed.rank
                AND worker = '' AND due_at IS NOT NULL AND due_at <= (SELECT now FROM present)
                AND {here}
            LIMIT share.count
        ) AS first
    ) AS counted
    WHERE (SELECT count(*) FROM visited) <= %(limit)s::bigint
) AS found
