"""Row-level security: the database itself isolates tenants.

It is done by the owner once (``secure``), and used by another role, which is neither the owner nor
exempt. Each transaction sets its tenant; the setting ends with the transaction, so a
connection shared by tenants carries nothing over. A store with ``rls=on`` does not open unless
every part is in place.
"""

from __future__ import annotations

from milecastle.errors import StoreError
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.migrating import Connection, connect
from milecastle.stores.postgres.statements import compose, file_text

_WHAT_TO_DO = "use another role, or revoke that one"


def secure(url: str, *, role: str) -> None:
    """Turn row-level security on for a URL's tables, and let ``role`` use them.

    Run it as the owner, after every migration. It may be run again.
    """
    address = parse(url)
    with connect(address) as connection, connection.transaction():
        connection.execute(compose(file_text("secure"), schema=address.schema, role=role))


def check_protection(connection: Connection, schema: str, *, wanted: bool) -> None:
    """Refuse a role that bypasses row-level security, or is subject to it without ``rls``."""
    with connection.transaction():
        connection.execute(file_text("plain_names").encode())
        tables = connection.execute(file_text("protection").encode(), {"name": schema}).fetchall()
    for table, active, exempt, owner, guarded in tables:
        if wanted:
            _check_table(table, exempt, owner, complete=bool(active and guarded))
        elif active:
            raise StoreError(
                f"row-level security is on in schema '{schema}': open the store with ?rls=on"
            )


def _check_table(table: str, exempt: str | None, owner: str | None, *, complete: bool) -> None:
    if exempt is not None:
        raise StoreError(
            f"role '{exempt}' bypasses row-level security (superuser or BYPASSRLS), and this "
            f"store's user is or can become that role: {_WHAT_TO_DO}"
        )
    if owner is not None:
        raise StoreError(
            f"role '{owner}' owns table '{table}' and could turn row-level security off, and this "
            f"store's user is or can become that role: {_WHAT_TO_DO}"
        )
    if not complete:
        raise StoreError(
            f"row-level security is incomplete on table '{table}', or has policies that are not "
            "from milecastle: run milecastle.stores.postgres.secure(url, role=...) as the owner, "
            "and "
            "drop all policies but 'tenants'"
        )
