SELECT tenant, fingerprint, manifest
FROM {schema}.manifests
WHERE tenant = ANY (%(tenants)s) AND (tenant, fingerprint) NOT IN (
    SELECT known.tenant, known.fingerprint
    FROM unnest(%(of)s::text[], %(fingerprints)s::text[]) AS known (tenant, fingerprint)
)
