-- Row-level security for a role that is not the owner: it sees and writes the rows of the tenant
-- that its transaction names, and no others. FORCE holds the owner to it as well.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.format, {schema}.workers, {schema}.membership TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON
    {schema}.entries, {schema}.threads, {schema}.runs, {schema}.results, {schema}.manifests,
    {schema}.tags, {schema}.mailbox, {schema}.memories, {schema}.buckets, {schema}.bucket_takes
TO {role};

ALTER TABLE {schema}.entries ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.threads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.runs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.results ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.manifests ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.tags ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.mailbox ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.memories ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.buckets ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE {schema}.bucket_takes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS tenants ON {schema}.entries;
DROP POLICY IF EXISTS tenants ON {schema}.threads;
DROP POLICY IF EXISTS tenants ON {schema}.runs;
DROP POLICY IF EXISTS tenants ON {schema}.results;
DROP POLICY IF EXISTS tenants ON {schema}.manifests;
DROP POLICY IF EXISTS tenants ON {schema}.tags;
DROP POLICY IF EXISTS tenants ON {schema}.mailbox;
DROP POLICY IF EXISTS tenants ON {schema}.memories;
DROP POLICY IF EXISTS tenants ON {schema}.buckets;
DROP POLICY IF EXISTS tenants ON {schema}.bucket_takes;
CREATE POLICY tenants ON {schema}.entries
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.threads
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.runs
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.results
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.manifests
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.tags
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.mailbox
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.memories
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.buckets
    USING (tenant = current_setting('milecastle.tenant', true));
CREATE POLICY tenants ON {schema}.bucket_takes
    USING (tenant = current_setting('milecastle.tenant', true));
