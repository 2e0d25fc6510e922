INSERT INTO {schema}.manifests (tenant, fingerprint, manifest)
VALUES (%(tenant)s, %(fingerprint)s, %(manifest)s)
ON CONFLICT (tenant, fingerprint) DO NOTHING
