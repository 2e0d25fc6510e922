INSERT INTO {schema}.manifests (tenant, fingerprint, manifest)
SELECT * FROM unnest(%(tenants)s::text[], %(fingerprints)s::text[], %(manifests)s::bytea[])
ON CONFLICT (tenant, fingerprint) DO NOTHING
