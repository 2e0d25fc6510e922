"""``milecastle verify``: everything is read, and damage is reported with its place."""

from __future__ import annotations

import sys

import click

from milecastle.app.verifying import verify_thread
from milecastle.cli.addressing import find_thread
from milecastle.cli.care_documents import Damage, VerifyDocument
from milecastle.cli.exits import FAILED, OK
from milecastle.cli.printing import counted, print_document, print_lines, say
from milecastle.cli.progress import Progress
from milecastle.cli.session import Session
from milecastle.cli.surveying import Log, damage_of, page_damage, survey
from milecastle.cli.verb import verb
from milecastle.errors import CodecError, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store

__all__ = ["command"]


@click.command("verify")
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@verb
def command(session: Session, threads: tuple[str, ...]) -> None:
    """Read everything and report damage with its place.

    Every checkpoint, run, failure and graph of the tenant, or of the threads that are named.
    Nothing is changed. Exit code 1: there is damage.
    """
    store = session.store()
    tenant = session.tenant
    logs = (
        (Log(find_thread(store, tenant, name)) for name in threads)
        if threads
        else survey(store, tenant)
    )
    looked_at = checkpoints = runs = 0
    damage: list[Damage] = [] if threads else page_damage(store)
    progress = Progress("verifying")
    for log in logs:
        looked_at += 1
        if log.key is None:
            damage += [damage_of(log, log.error)] if log.error else []
            continue
        read, recorded, found = _verify(store, log.key)
        checkpoints, runs = checkpoints + read, runs + recorded
        damage += found
        progress.at(log.key.thread)
    document = VerifyDocument(
        tenant=tenant,
        threads=looked_at,
        checkpoints=checkpoints,
        runs=runs,
        damage=tuple(damage),
    )
    _print(session, document)
    sys.exit(FAILED if damage else OK)


def _verify(store: Store, key: ThreadKey) -> tuple[int, int, list[Damage]]:
    from milecastle.stores.jsonl import JsonlStore

    if isinstance(store, JsonlStore):
        try:
            store.verify(key)
        except Unavailable:
            raise
        except (StoreError, CodecError) as error:
            return 0, 0, [damage_of(Log(key, store.path_of(key)), error)]
    report = verify_thread(store, key)
    damage = [
        Damage(thread=key.thread, place=found.place, problem=found.problem, code=found.code)
        for found in report.findings
    ]
    return report.checkpoints, report.runs, damage


def _print(session: Session, document: VerifyDocument) -> None:
    if session.as_json:
        print_document(document)
        return
    print_lines(f"{item.place}: {item.problem} [{item.code}]" for item in document.damage)
    print_lines(
        [
            f"{counted(document.threads, 'thread')}, "
            f"{counted(document.checkpoints, 'checkpoint')}, {counted(document.runs, 'run')}: "
            + (counted(len(document.damage), "damaged place") if document.damage else "all whole")
        ]
    )
    if document.damage:
        say(
            "`milecastle repair` cuts off torn last lines of files; for anything else restore a "
            "copy (`milecastle copy` makes one of whole threads)"
        )
