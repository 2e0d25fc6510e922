"""``milecastle doctor``: is everything in place, and if not, what to do."""

from __future__ import annotations

import sys

import click

from milecastle.cli.care_documents import DoctorDocument
from milecastle.cli.checkups import examine
from milecastle.cli.exits import FAILED, OK, UNREACHABLE
from milecastle.cli.printing import print_document, print_lines, print_table, styled_status
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb

__all__ = ["command"]


@click.command("doctor")
@app_option
@verb
def command(session: Session) -> None:
    """Check store, versions, permissions, clock and disk; say what to do.

    Nothing is changed. Exit code 4: the store cannot be reached. 1: something else failed.
    """
    checks = tuple(examine(session))
    failed = [check for check in checks if check.verdict == "failed"]
    if session.as_json:
        print_document(DoctorDocument(ok=not failed, checks=checks))
    else:
        rows = [[check.name, styled_status(check.verdict), check.found] for check in checks]
        print_table(["CHECK", "VERDICT", "FOUND"], rows)
        print_lines(f"{check.name}: {check.advice}" for check in checks if check.advice)
    unreachable = any(check.name == "store" for check in failed)
    sys.exit(UNREACHABLE if unreachable else FAILED if failed else OK)
