"""The PostgreSQL store: many processes, many tenants, one truth. Needs the extra ``postgres``."""

from milecastle.stores.postgres.migrating import PostgresServer, migrate
from milecastle.stores.postgres.security import secure
from milecastle.stores.postgres.store import PostgresStore

__all__ = ["PostgresServer", "PostgresStore", "migrate", "secure"]
