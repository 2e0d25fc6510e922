-- Everything of some threads of a shard, but the manifests of their tenants.
WITH asked AS MATERIALIZED (
    SELECT tenant, thread
    FROM unnest(%(tenants)s::text[], %(threads)s::text[]) AS asked (tenant, thread)
), entry AS (
    DELETE FROM {schema}.entries AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
), run AS (
    DELETE FROM {schema}.runs AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
), result AS (
    DELETE FROM {schema}.results AS known USING asked
    WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
), input AS (
    DELETE FROM {schema}.inputs AS known USING asked
    WHERE known.tenant = asked.tenant AND known.thread = asked.thread
), tag AS (
    DELETE FROM {schema}.tags AS known USING asked
    WHERE known.tenant = asked.tenant AND known.thread = asked.thread
)
DELETE FROM {schema}.threads AS known USING asked
WHERE known.shard = %(shard)s AND known.tenant = asked.tenant AND known.thread = asked.thread
