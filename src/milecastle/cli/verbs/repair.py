from __future__ import annotations

import sys

import click

from milecastle.cli.exits import FAILED, OK
from milecastle.cli.printing import counted, say
from milecastle.cli.session import MISSING, Session
from milecastle.cli.verb import verb
from milecastle.views.documents import Damage, RepairDocument, RepairLine


@click.command("repair")
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@verb
def command(session: Session, threads: tuple[str, ...]) -> None:
    """Remove torn last lines from log files, saving copies.

    A torn line was never acknowledged, so nothing is lost. Damage is reported and not changed.
    SQLite and PostgreSQL repair themselves when they are opened.
    """
    store = session.store()
    repaired: list[RepairLine] = []
    damage: list[Damage] = []
    looked_at = 0
    if store.maintenance is not None:
        for log in store.maintenance.repair(session.tenant, threads):
            looked_at += 1
            damage += Damage.of(log.thread, log.findings)
            if log.file is not None:
                repaired.append(RepairLine(thread=log.thread, file=log.file, kept=log.kept))
        if not looked_at:
            say("nothing to repair: only log files (file://...) can have torn lines")
    else:
        say(f"nothing to repair in {session.describe_store()}: {MISSING}")
    document = RepairDocument(
        tenant=session.tenant, threads=looked_at, repaired=tuple(repaired), damage=tuple(damage)
    )
    lines = [f"{line.file}: torn line removed, copy saved at {line.kept}" for line in repaired]
    lines += (f"{item.place}: {item.problem} [{item.code}]" for item in damage)
    count = counted(looked_at, "thread")
    lines.append(f"{count}, {len(repaired)} repaired, {len(damage)} damaged")
    session.report(document, lines)
    sys.exit(FAILED if damage else OK)
