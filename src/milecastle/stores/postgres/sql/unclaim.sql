-- Within the transaction of a claim: threads for which limits leave no room are as they were.
UPDATE {schema}.threads AS known
SET worker = ''
FROM unnest(%(tenants)s::text[], %(threads)s::text[]) AS asked (tenant, thread)
WHERE known.tenant = asked.tenant AND known.thread = asked.thread
RETURNING 1
