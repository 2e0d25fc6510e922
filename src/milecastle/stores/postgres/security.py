"""Row-level security: the database itself keeps tenants apart.

It is done by the owner once (``secure``), and used by another role, which is neither the owner nor
exempt. Each transaction names its tenant; the name ends with the transaction, so that a connection
that goes from tenant to tenant carries nothing along. A store that asks for it does not open
unless every part of it is in place.
"""

from __future__ import annotations

import psycopg

from milecastle.errors import StoreError
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.migrating import Connection, connect
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.stores.postgres.translating import translate

__all__ = ["check_protection", "secure"]


def secure(url: str, *, role: str) -> None:
    """Turn row-level security on for the tables of a URL, and let ``role`` use them.

    Run it as the owner, after every migration. It may be run again.
    """
    address = parse(url)
    with connect(address) as connection:
        try:
            with connection.transaction():
                connection.execute(compose(file_text("secure"), schema=address.schema, role=role))
        except psycopg.Error as error:
            raise translate(error) from error


def check_protection(connection: Connection, schema: str, *, wanted: bool) -> None:
    """Refuse a role that row-level security does not hold, or that it holds unawares."""
    tables = connection.execute(file_text("protection").encode(), {"name": schema}).fetchall()
    if not wanted:
        if any(active for *_, active in tables):
            raise StoreError(
                f"row-level security is on in schema '{schema}': open the store with ?rls=on"
            )
        return
    for table, forced, owned, guarded, exempt, active in tables:
        if exempt:
            raise StoreError(
                "this role bypasses row-level security (superuser or BYPASSRLS): "
                "open the store as another one"
            )
        if owned:
            raise StoreError(
                f"this role owns table '{table}' and could turn row-level security off: "
                "open the store as another one"
            )
        if not (forced and guarded and active):
            raise StoreError(
                f"row-level security is not complete on table '{table}': "
                "run milecastle.stores.postgres.secure(url, role=...) as the owner"
            )
