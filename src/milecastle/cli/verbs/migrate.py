from __future__ import annotations

import click

from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.session import MISSING, Session, masked
from milecastle.cli.verb import verb
from milecastle.views.documents import MigrateDocument


@click.command("migrate")
@click.option("--print", "print_only", is_flag=True, help="Print the SQL and change nothing.")
@verb
def command(session: Session, print_only: bool) -> None:
    """Migrate the tables of a store to the current version.

    PostgreSQL and SQLite are also migrated when they are opened, PostgreSQL unless its
    URL says migrate=off; this is for doing it separately, as the owner of the tables.
    """
    found = session.url()
    if found is None:
        raise click.UsageError("no store given: use --store or MILECASTLE_STORE")
    sql = _migrate(session, found.value, print_only)
    document = MigrateDocument(
        store=masked(found.value),
        pending=bool(sql) and print_only,
        applied=bool(sql) and not print_only,
        sql=sql,
    )
    if session.as_json:
        print_document(document)
    elif print_only:
        print_lines([sql.rstrip("\n")] if sql else [])
    if not session.as_json and not sql:
        say("nothing to do: the tables are up to date")
    elif not session.as_json and not print_only:
        print_lines(["the tables are up to date now"])


def _migrate(session: Session, url: str, print_only: bool) -> str:
    store = session.unopened(url)
    if store is None:
        say(f"nothing to migrate in {masked(url)}: {MISSING}")
        return ""
    pending = store.pending_migrations()
    if pending is None or not pending.sql or print_only:
        return pending.sql if pending else ""
    return store.migrate()
