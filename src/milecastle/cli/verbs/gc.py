"""``milecastle gc``: retention, by hand or from a timer."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec.structs

from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.children import is_child, root_of
from milecastle.app.retention import Retention, RetentionReport
from milecastle.cli.addressing import all_threads
from milecastle.cli.care_documents import GcDocument
from milecastle.cli.decoding import KEYS_NEEDED
from milecastle.cli.places import path_of
from milecastle.cli.printing import counted, print_document, print_lines, say
from milecastle.cli.progress import Progress
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.errors import CodecError, EncryptionError, PlaintextRefused
from milecastle.model.keys import ThreadKey

__all__ = ["command"]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """A number with a unit: 90s, 15m, 12h, 30d, 4w."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([smhdw])", value)
    if found is None:
        raise click.BadParameter(f"'{value}' is no age: write 90s, 15m, 12h, 30d or 4w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.command("gc")
@click.option(
    "--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep so many of each thread."
)
@click.option(
    "--older-than", metavar="AGE", callback=_age, help="Let go what is older: 12h, 30d, 4w."
)
@click.option(
    "--thread",
    "threads",
    metavar="NAME",
    multiple=True,
    help="Only this thread; may be given again.",
)
@click.option("--workspace", metavar="DIR", help="Also old runs over files, kept here.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would go.")
@app_option
@verb
def command(
    session: Session,
    keep_last: int | None,
    older_than: timedelta | None,
    threads: tuple[str, ...],
    workspace: str | None,
    dry_run: bool,
) -> None:
    """Let old checkpoints and threads go.

    With both rules only what both let go. A thread goes whole by age alone, and only if its newest
    run ended. Threads that run or wait keep what they need. Of runs over files the newest of each
    thread, the newest that failed, and what these took over always stay.
    """
    if keep_last is None and older_than is None:
        raise click.UsageError("say what may go: --keep-last 20, --older-than 30d, or both")
    swept = Swept()
    if workspace is None or session.url() or session.app_reference:
        _sweep(
            session, Retention(keep_last=keep_last, older_than=older_than), threads, dry_run, swept
        )
    file_runs = _file_runs(session, workspace, keep_last, older_than, threads, dry_run)
    _print(session, swept, file_runs, dry_run=dry_run)


class Swept:
    """What came of the threads. ``left`` were left alone, and why."""

    def __init__(self) -> None:
        self.reports: list[RetentionReport] = []
        self.left: dict[str, str] = {}


def _sweep(
    session: Session, rules: Retention, threads: tuple[str, ...], dry_run: bool, swept: Swept
) -> None:
    keepers = _keepers(session)
    gone: set[ThreadKey] = set()
    keys = all_threads(session.store(), session.tenant, threads)
    for name in Progress("letting go").over(key.thread for key in keys):
        key = session.key(name)
        if is_child(key) and root_of(key) in gone:
            continue
        one = msgspec.structs.replace(rules, threads=(name,))
        try:
            report = _let_go(keepers, session.tenant, one, dry_run)
        except EncryptionError:
            swept.left[name] = f"it is encrypted; {KEYS_NEEDED}"
        except CodecError:
            swept.left[name] = "its state needs the graph's code, --app module:attribute"
        else:
            gone.update(map(session.key, report.deleted))
            swept.reports.append(report)


def _let_go(
    keepers: list[CheckpointStore], tenant: str, rules: Retention, dry_run: bool
) -> RetentionReport:
    """With the keys if there are any; what is not encrypted is read without."""
    for keeper in keepers[:-1]:
        try:
            return keeper.apply_retention(tenant, rules, dry_run=dry_run)
        except PlaintextRefused:
            continue
    return keepers[-1].apply_retention(tenant, rules, dry_run=dry_run)


def _keepers(session: Session) -> list[CheckpointStore]:
    """The store with the types of the app, if one was named: a cut may have to decode a state."""
    store = session.store()
    types: list[Any] = []
    if session.app_reference is not None:
        channels = session.app().graph.schema.channels
        types = [channel.annotation for channel in channels.values()]
    keyring = session.keyring()
    found = [CheckpointStore(store, types=types)]
    if keyring is not None:
        found.insert(0, CheckpointStore(store, types=types, encryption=keyring))
    return found


def _file_runs(
    session: Session,
    folder: str | None,
    keep_last: int | None,
    older_than: timedelta | None,
    threads: tuple[str, ...],
    dry_run: bool,
) -> tuple[str, ...]:
    """Let runs over files go, if there is a workspace: the one named, or a file store's folder."""
    url = session.url()
    path = path_of(url.value) if url and url.value.startswith("file:") else None
    path = Path(folder) if folder else path
    if path is None or not (path / "runs").is_dir():
        if folder:
            raise click.UsageError(f"there is no workspace at {folder}: it has no runs")
        return ()
    from time import time

    from milecastle.recovery.run_retention import let_runs_go
    from milecastle.recovery.workspace import Workspace

    limit = None if older_than is None else int((time() - older_than.total_seconds()) * 1_000_000)
    gone = let_runs_go(
        Workspace(path),
        session.tenant,
        keep_last=keep_last,
        started_before=limit,
        threads=threads or None,
        dry_run=dry_run,
    )
    for thread in gone.busy:
        say(f"a run of {thread} is at work in {path}: its old runs come next time")
    return gone.runs


def _print(session: Session, swept: Swept, file_runs: tuple[str, ...], *, dry_run: bool) -> None:
    reports = swept.reports
    document = GcDocument(
        tenant=session.tenant,
        dry_run=dry_run,
        threads=len(reports) + len(swept.left),
        pruned=sum(report.pruned for report in reports),
        dropped=sum(report.dropped for report in reports),
        deleted=tuple(name for report in reports for name in report.deleted),
        busy=tuple(name for report in reports for name in report.busy),
        undecoded=tuple(swept.left),
        file_runs=file_runs,
    )
    if session.as_json:
        print_document(document)
        return
    go = "would go" if dry_run else "went"
    print_lines(f"thread {name} {go} whole" for name in document.deleted)
    gone = f"{counted(document.dropped, 'checkpoint')} of {counted(document.pruned, 'thread')}"
    whole = counted(len(document.deleted), "whole thread")
    looked_at = counted(document.threads, "thread")
    print_lines([f"{gone} and {whole} {go}; {looked_at} looked at"])
    if file_runs:
        print_lines([f"{counted(len(file_runs), 'run')} over files {go}"])
    for name in document.busy:
        say(f"{name} was written to all the time: it comes next time")
    for name, why in swept.left.items():
        say(f"{name} was left alone: {why}")
