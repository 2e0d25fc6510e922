"""``milecastle migrate``: the tables of a store, brought up to date or printed."""

from __future__ import annotations

import click

from milecastle.cli.care_documents import MigrateDocument
from milecastle.cli.places import masked
from milecastle.cli.printing import print_document, print_lines, say
from milecastle.cli.session import Session
from milecastle.cli.verb import verb

__all__ = ["command"]


@click.command("migrate")
@click.option("--print", "print_only", is_flag=True, help="Print the SQL and change nothing.")
@verb
def command(session: Session, print_only: bool) -> None:
    """Bring the tables of a store up to date.

    PostgreSQL and SQLite are also brought up to date when they are opened, PostgreSQL unless its
    URL says migrate=off; this is for who does it apart, as the owner of the tables.
    """
    found = session.url()
    if found is None:
        raise click.UsageError("which store? Name it with --store or MILECASTLE_STORE")
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
    """The SQL that was missing; "" if none was."""
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        from milecastle.cli.postgres_servers import migrate_postgres

        return migrate_postgres(url, print_only=print_only)
    if scheme == "sqlite":
        from milecastle.cli.sqlite_files import missing_sql

        sql = missing_sql(url)
        if sql and not print_only:
            session.open(url)
        return sql
    return ""
