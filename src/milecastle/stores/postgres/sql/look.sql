-- What is due in some lanes, by lane, tenant and rank: how many of each, at most as many as
-- asked for. Nothing is locked, so it is a hint: take.sql decides.
--
-- If all that is due fits into the limit, it is counted and that is all. Otherwise it is to be
-- shared, and tenants are visited one after the other, each lane beginning behind the tenant that
-- was served there last: of a group of threads, the first tells whether any is due, so that those
-- that sleep are not read. If these are not enough for one thread of each, those that have waited
-- longest are added, and so many of each are counted that four times the limit is seen.
--
-- Tenants from which limits let nobody claim are left out, at the price of one visit each. Of what
-- has waited longest, and of everything if it fits, they are only not returned: reading past all
-- that they have due would cost more than a claim may.
--
-- The last column says whether limits cover these lanes: then the claim looks again, and nobody else
-- does meanwhile.
-- Visits are numbered from 1, and those that have waited longest have 0. The last possible number
-- says where the visits to a lane ended before the lane did; nothing may be due there.
WITH present AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
), front AS MATERIALIZED (
    SELECT asked.lane, first.tenant, first.rank
    FROM unnest(%(lanes)s::text[]) AS asked (lane), LATERAL (
        SELECT tenant, rank, due_at
        FROM {schema}.threads
        WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
            AND due_at <= (SELECT now FROM present) AND {here}
        ORDER BY due_at
        LIMIT %(limit)s::bigint + 1
    ) AS first
    ORDER BY first.due_at
    LIMIT %(limit)s::bigint + 1
), shut AS MATERIALIZED (
    SELECT * FROM unnest(%(shut_lanes)s::text[], %(shut_tenants)s::text[]) AS given (lane, tenant)
), visited AS MATERIALIZED (
    SELECT asked.lane, found.*
    FROM unnest(%(lanes)s::text[], %(after)s::text[]) AS asked (lane, after), LATERAL (
        WITH RECURSIVE visit AS (
            (
                SELECT tenant, rank, due_at, 1 AS number
                FROM {schema}.threads
                WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
                    AND tenant > asked.after AND {here}
                ORDER BY tenant, rank, due_at
                LIMIT 1
            )
            UNION ALL
            SELECT next.tenant, next.rank, next.due_at, visit.number + 1
            FROM visit, LATERAL (
                SELECT tenant, rank, due_at
                FROM {schema}.threads
                WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
                    AND (tenant, rank) > (visit.tenant, visit.rank) AND {here}
                ORDER BY tenant, rank, due_at
                LIMIT 1
            ) AS next
            WHERE visit.number < %(visits)s
        )
        SELECT tenant, rank, number
        FROM visit
        WHERE number = %(visits)s OR (
            due_at <= (SELECT now FROM present)
            AND (asked.lane, tenant) NOT IN (SELECT lane, tenant FROM shut)
        )
        LIMIT %(limit)s::bigint + 1
    ) AS found
    WHERE (SELECT count(*) FROM front) > %(limit)s::bigint
), listed AS MATERIALIZED (
    SELECT lane, tenant, rank, number FROM visited
    UNION ALL
    SELECT lane, tenant, rank, 0
    FROM front
    WHERE (SELECT count(*) FROM front) > %(limit)s::bigint
        AND (SELECT count(*) FROM visited) <= %(limit)s::bigint
        AND (lane, tenant) NOT IN (SELECT lane, tenant FROM shut)
    GROUP BY lane, tenant, rank
), share AS (
    SELECT 1 + 4 * %(limit)s::bigint / count(*) AS count FROM listed HAVING count(*) > 0
)
SELECT found.*, EXISTS (
    SELECT FROM {schema}.limits WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
)
FROM (
    SELECT lane, tenant, rank, count(*), NULL::integer AS number
    FROM front
    WHERE (SELECT count(*) FROM front) <= %(limit)s::bigint
        AND (lane, tenant) NOT IN (SELECT lane, tenant FROM shut)
    GROUP BY lane, tenant, rank
    UNION ALL
    SELECT lane, tenant, rank, 1, number
    FROM visited
    WHERE (SELECT count(*) FROM visited) > %(limit)s::bigint
    UNION ALL
    SELECT listed.lane, listed.tenant, listed.rank, counted.count, listed.number
    FROM listed, share, LATERAL (
        SELECT count(*)
        FROM (
            SELECT
            FROM {schema}.threads
            WHERE lane = listed.lane AND tenant = listed.tenant AND rank = listed.rank
                AND worker = '' AND due_at IS NOT NULL AND due_at <= (SELECT now FROM present)
                AND {here}
            LIMIT share.count
        ) AS first
    ) AS counted
    WHERE (SELECT count(*) FROM visited) <= %(limit)s::bigint
) AS found
