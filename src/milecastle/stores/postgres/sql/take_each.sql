-- One due thread of each of so many tenants, given to a worker: of a tenant the most urgent, of
-- these the one that was due first. Lanes are visited in their order, each from behind the tenant
-- that was served there last, or from the first if there is none behind it. Nothing is taken if
-- these are fewer tenants than asked for, if one of them has limit keys, if a lane has too many groups
-- in which nothing is due, or if limits cover it: then look.sql is asked.
-- A thread that somebody else is writing is left out. As in take.sql, nobody waits.
visited AS MATERIALIZED (
    SELECT found.*
    FROM unnest(%(lanes)s::text[], %(after_tenants)s::text[]) AS asked (lane, after), LATERAL (
        WITH RECURSIVE visit AS (
            (
                (
                    SELECT ctid AS place, tenant, limit_key, rank, due_at, 1 AS number
                    FROM {schema}.threads
                    WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
                        AND tenant > asked.after AND {here}
                    ORDER BY tenant, limit_key, rank, due_at
                    LIMIT 1
                )
                UNION ALL
                (
                    SELECT ctid, tenant, limit_key, rank, due_at, 1
                    FROM {schema}.threads
                    WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL AND {here}
                    ORDER BY tenant, limit_key, rank, due_at
                    LIMIT 1
                )
                LIMIT 1
            )
            UNION ALL
            SELECT
                next.place, next.tenant, next.limit_key, next.rank, next.due_at, visit.number + 1
            FROM visit, LATERAL (
                SELECT ctid AS place, tenant, limit_key, rank, due_at
                FROM {schema}.threads
                WHERE lane = asked.lane AND worker = '' AND due_at IS NOT NULL
                    AND (tenant, limit_key, rank) > (
                        visit.tenant,
                        CASE
                            WHEN visit.due_at <= (SELECT now FROM present) THEN '~'
                            ELSE visit.limit_key
                        END,
                        CASE
                            WHEN visit.due_at <= (SELECT now FROM present) THEN 2147483647
                            ELSE visit.rank
                        END
                    ) AND {here}
                ORDER BY tenant, limit_key, rank, due_at
                LIMIT 1
            ) AS next
            WHERE visit.number < %(visits)s
        )
        SELECT place, limit_key, number
        FROM visit
        WHERE due_at <= (SELECT now FROM present) OR number = %(visits)s
        LIMIT %(limit)s::bigint
    ) AS found
    LIMIT %(limit)s::bigint
), locked AS MATERIALIZED (
    SELECT ctid AS place, shard
    FROM {schema}.threads
    WHERE ctid = ANY (ARRAY(SELECT place FROM visited))
        AND worker = '' AND due_at <= (SELECT now FROM present)
        AND (
            SELECT count(*) FROM visited WHERE number < %(visits)s AND limit_key = '~'
        ) = %(limit)s::bigint
        AND NOT EXISTS (
            SELECT FROM {schema}.limits WHERE graph = '' OR graph = ANY (%(graphs)s::text[])
        )
    FOR UPDATE SKIP LOCKED
)
