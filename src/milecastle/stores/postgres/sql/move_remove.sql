-- Everything of some threads of a shard, but the manifests of their tenants. The entries of those that
-- are not taken as a whole stay; it returns up to which seq there are any.
WITH asked AS MATERIALIZED (
    SELECT
        tenant, thread, place, CASE
            WHEN whole THEN 0
            ELSE (
                SELECT coalesce(max(seq), 0)
                FROM {schema}.entries AS known
                WHERE known.shard = %(shard)s AND known.tenant = asked.tenant
                    AND known.thread = asked.thread
            )
        END AS after
    FROM unnest(%(tenants)s::text[], %(threads)s::text[], %(whole)s::boolean[]) WITH ORDINALITY
        AS asked (tenant, thread, whole, place)
), entry AS (
    DELETE FROM {schema}.entries AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
        AND asked.after = 0
), run AS (
    DELETE FROM {schema}.runs AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
), result AS (
    DELETE FROM {schema}.results AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
), message AS (
    DELETE FROM {schema}.mailbox AS known USING asked
    WHERE known.tenant = asked.tenant AND known.thread = asked.thread
), tag AS (
    DELETE FROM {schema}.tags AS known USING asked
    WHERE known.tenant = asked.tenant AND known.thread = asked.thread
), line AS (
    DELETE FROM {schema}.threads AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
)
SELECT after FROM asked ORDER BY place
