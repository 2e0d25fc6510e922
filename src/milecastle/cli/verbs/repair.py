"""``milecastle repair``: torn last lines of logs in files."""

from __future__ import annotations

import sys

import click

from milecastle.cli.care_documents import Damage, RepairDocument, RepairLine
from milecastle.cli.exits import FAILED, OK
from milecastle.cli.printing import counted, print_document, print_lines, say
from milecastle.cli.session import Session
from milecastle.cli.surveying import Log, damage_of, survey
from milecastle.cli.verb import verb
from milecastle.errors import Corrupted, FormatTooNew
from milecastle.stores.jsonl import JsonlStore

__all__ = ["command"]


@click.command("repair")
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@verb
def command(session: Session, threads: tuple[str, ...]) -> None:
    """Cut off torn last lines of logs in files, keeping copies.

    A torn line was never acknowledged, so nothing is lost. Damage is reported and left alone.
    SQLite and PostgreSQL mend themselves when they are opened.
    """
    store = session.store()
    if not isinstance(store, JsonlStore):
        say("nothing to repair: only logs in files (file://...) can have torn lines")
        _print(session, 0, [], [])
        sys.exit(OK)
    logs = (
        [Log(session.key(name), store.path_of(session.key(name))) for name in threads]
        if threads
        else list(survey(store, session.tenant))
    )
    repaired: list[RepairLine] = []
    damage: list[Damage] = []
    for log in logs:
        try:
            repaired += _repair(store, log)
        except (Corrupted, FormatTooNew) as error:
            damage.append(damage_of(log, error))
    _print(session, len(logs), repaired, damage)
    sys.exit(FAILED if damage else OK)


def _repair(store: JsonlStore, log: Log) -> list[RepairLine]:
    from milecastle.stores.jsonl.repair import repair_file

    if log.path is None:
        return []
    kept = store.repair(log.key) if log.key else repair_file(log.path)
    if kept is None:
        return []
    if log.key:
        store.write_runs(log.key)
    thread = log.key.thread if log.key else None
    return [RepairLine(thread=thread, file=str(log.path), kept=str(kept))]


def _print(
    session: Session, threads: int, repaired: list[RepairLine], damage: list[Damage]
) -> None:
    document = RepairDocument(
        tenant=session.tenant, threads=threads, repaired=tuple(repaired), damage=tuple(damage)
    )
    if session.as_json:
        print_document(document)
        return
    print_lines(f"{line.file}: torn line cut off, copy kept at {line.kept}" for line in repaired)
    print_lines(f"{item.place}: {item.problem} [{item.code}]" for item in damage)
    print_lines([f"{counted(threads, 'thread')}, {len(repaired)} repaired, {len(damage)} damaged"])
