from __future__ import annotations

import sys

import click

from milecastle.app.upkeep.verifying import ThreadReport, verify_thread
from milecastle.cli.addressing import find_thread
from milecastle.cli.exits import FAILED, OK
from milecastle.cli.printing import ProgressReport, counted, say
from milecastle.cli.session import MISSING, Session
from milecastle.cli.verb import verb
from milecastle.ports.maintenance import inspect_listed
from milecastle.views.documents import Damage, VerifyDocument


@click.command("verify")
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@verb
def command(session: Session, threads: tuple[str, ...]) -> None:
    """Read everything and report damage and where it is.

    Reads every checkpoint, run, failure and graph of the tenant, or of the given threads.
    Nothing is changed. Exit code 1: there is damage.
    """
    store = session.store()
    tenant = session.tenant
    named = [find_thread(store, tenant, name).thread for name in threads]
    lists, replica = session.listed(store), store.replica
    if replica is not None:
        inspected = replica.verify(tenant, named)
    elif store.maintenance is not None:
        inspected = store.maintenance.verify(tenant, named)
    else:
        say(f"{session.describe_store()} has no checks of its own: {MISSING}")
        inspected = inspect_listed(store, tenant, named)
    looked_at = checkpoints = runs = 0
    damage: list[Damage] = []
    progress = ProgressReport("verifying")
    for found in inspected:
        looked_at += found.is_thread
        damage += Damage.of(found.thread, found.findings)
        if found.thread is None or found.findings:
            continue
        key = session.key(found.thread)
        report = verify_thread(lists, key, store.file_storage)
        if report == ThreadReport(0, 0, ()):  # the replica may not have the thread yet
            report = verify_thread(store, key, store.file_storage)
        checkpoints, runs = checkpoints + report.checkpoints, runs + report.runs
        damage += Damage.of(found.thread, report.findings)
        progress.at(found.thread)
    document = VerifyDocument(
        tenant=tenant, threads=looked_at, checkpoints=checkpoints, runs=runs, damage=tuple(damage)
    )
    what = f"{counted(looked_at, 'thread')}, {counted(checkpoints, 'checkpoint')}"
    outcome = counted(len(damage), "damaged place") if damage else "no damage found"
    lines = [f"{item.place}: {item.problem} [{item.code}]" for item in damage]
    session.report(document, [*lines, f"{what}, {counted(runs, 'run')}: {outcome}"])
    if damage and not session.as_json:
        say(
            "`milecastle repair` removes torn last lines of log files; for anything else restore "
            "a copy (`milecastle copy` copies whole threads)"
        )
    sys.exit(FAILED if damage else OK)
