from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec.structs

from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.threads.children import is_child, root_of
from milecastle.app.upkeep.retention import Retention, RetentionReport
from milecastle.cli.addressing import all_threads
from milecastle.cli.printing import ProgressReport, counted, print_document, print_lines, say
from milecastle.cli.session import Session, keepers_of, path_of, with_keys
from milecastle.cli.verb import app_argument, verb
from milecastle.errors import CodecError, EncryptionError, MilecastleError, PlaintextRefused
from milecastle.model.keys import ThreadKey
from milecastle.views.decoding import KEYS_NEEDED
from milecastle.views.documents import GcDocument, KeptLine

_MOST_ITEMS = 100_000
"""How many items of long-term memory whose time is over one call removes."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([smhdw])", value)
    if found is None:
        raise click.BadParameter(f"'{value}' is not an age: write 90s, 15m, 12h, 30d or 4w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.command("gc")
@click.option(
    "--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep this many per thread."
)
@click.option(
    "--older-than", metavar="AGE", callback=_age, help="Delete what is older: 12h, 30d, 4w."
)
@click.option(
    "--thread", "threads", metavar="NAME", multiple=True, help="Only this thread; may be repeated."
)
@click.option("--workspace", metavar="DIR", help="Also delete old file runs in this workspace.")
@click.option(
    "--failed", is_flag=True, help="With --older-than, also delete failed or cancelled threads."
)
@click.option(
    "--archive",
    "archive_after",
    metavar="AGE",
    callback=_age,
    help="Move what stays and is older to object storage: 30d.",
)
@click.option(
    "--objects", is_flag=True, help="Also remove large values that no checkpoint has named lately."
)
@click.option("--dry-run", is_flag=True, help="Change nothing; report what would be deleted.")
@app_argument
@verb
def command(
    session: Session,
    keep_last: int | None,
    older_than: timedelta | None,
    threads: tuple[str, ...],
    workspace: str | None,
    failed: bool,
    archive_after: timedelta | None,
    objects: bool,
    dry_run: bool,
) -> None:
    """Delete or archive old checkpoints and threads.

    With both rules, only what both allow is deleted. A whole thread is deleted only by age, and
    only if it has nothing left to run and no open question; --failed also deletes threads that
    failed or were cancelled. Running and waiting threads keep what they need. For file runs, the
    newest of each thread, the newest failed one, and what these reuse always stay. Items of
    long-term memory that have expired are removed.

    With --archive, older checkpoints that stay are moved to object storage; they are read like
    others. `milecastle restore` moves those of a thread back. With --objects, large values in
    object storage that no checkpoint names are removed by the second sweep that finds them, a day
    after the first; it needs no other rule.
    """
    deletes = keep_last is not None or older_than is not None
    has_rules = deletes or archive_after is not None
    if not has_rules and not objects:
        raise click.UsageError(
            "nothing selected: use --keep-last 20, --older-than 30d, --archive 30d or several"
        )
    reports: list[RetentionReport] = []
    skipped: dict[str, str] = {}
    if has_rules and (workspace is None or session.url() or session.named_app):
        rules = Retention(
            keep_last=keep_last, older_than=older_than, archive_after=archive_after, failed=failed
        )
        reports = list(_sweep(session, rules, threads, dry_run))
        for report in reports:
            skipped |= {name: _reason(error) for name, error in report.unreadable.items()}
        if not dry_run and (memory := session.store().memory) is not None:
            memory.sweep(session.tenant, limit=_MOST_ITEMS)
    file_runs: tuple[str, ...] = ()
    if deletes:
        file_runs = _file_runs(session, workspace, keep_last, older_than, threads, dry_run)
    if objects:
        _sweep_objects(session, dry_run)
    _print(session, reports, skipped, file_runs, dry_run=dry_run)


def _sweep_objects(session: Session, dry_run: bool) -> None:
    report = CheckpointStore(session.store()).sweep_objects(session.tenant, dry_run=dry_run)
    would = "would be " if dry_run else ""
    say(
        f"{counted(report.named + report.waiting, 'object')} in use or new, {report.condemned} "
        f"to be removed by a later sweep, {report.removed} {would}removed"
    )
    if report.strays:
        say(
            f"{counted(report.strays, 'object')} left alone: Milecastle does not give such names; "
            "look below objects/ and files/ of the tenant, and remove what does not belong there"
        )


def _sweep(
    session: Session, rules: Retention, threads: tuple[str, ...], dry_run: bool
) -> Iterator[RetentionReport]:
    types: list[Any] = []
    if session.named_app is not None:  # pruning may have to decode a state
        channels = session.app().graph.schema.channels
        types = [channel.annotation for channel in channels.values()]
    keepers = keepers_of(session, types)
    gone: set[ThreadKey] = set()
    keys = all_threads(session.store(), session.tenant, threads)
    for name in ProgressReport("deleting").over(key.thread for key in keys):
        key = session.key(name)
        if is_child(key) and root_of(key) in gone:
            continue
        one = msgspec.structs.replace(rules, threads=(name,))
        report = with_keys(keepers, partial(_apply, session.tenant, one, dry_run))
        gone.update(map(session.key, report.deleted))
        yield report


def _reason(error: MilecastleError) -> str:
    if isinstance(error, EncryptionError):
        return f"it is encrypted; {KEYS_NEEDED}"
    if isinstance(error, CodecError):
        return "decoding its state needs the graph's code: --app module:attribute"
    return f"{error.message}; `milecastle verify` reports the details"


def _apply(
    tenant: str, rules: Retention, dry_run: bool, keeper: CheckpointStore
) -> RetentionReport:
    """Raises ``PlaintextRefused``: then unencrypted threads are read without the keys."""
    report = keeper.apply_retention(tenant, rules, dry_run=dry_run)
    for error in report.unreadable.values():
        if isinstance(error, PlaintextRefused):
            raise error
    return report


def _file_runs(
    session: Session,
    folder: str | None,
    keep_last: int | None,
    older_than: timedelta | None,
    threads: tuple[str, ...],
    dry_run: bool,
) -> tuple[str, ...]:
    """Delete old file runs, if there is a workspace: the given one, or a file store's folder."""
    url = session.url()
    path = path_of(url.value) if url and url.value.startswith("file:") else None
    path = Path(folder) if folder else path
    if path is None or not (path / "runs").is_dir():
        if folder:
            raise click.UsageError(f"there is no workspace at {folder}")
        return ()
    from time import time

    from milecastle.builds.upkeep import let_runs_go
    from milecastle.builds.workspace import Workspace

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
        say(f"a run of {thread} is in progress in {path}: its old runs are left for the next gc")
    return gone.runs


def _print(
    session: Session,
    reports: list[RetentionReport],
    skipped: dict[str, str],
    file_runs: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    document = GcDocument(
        tenant=session.tenant,
        dry_run=dry_run,
        threads=len(reports),
        pruned=sum(report.pruned for report in reports),
        dropped=sum(report.dropped for report in reports),
        deleted=tuple(name for report in reports for name in report.deleted),
        busy=tuple(name for report in reports for name in report.busy),
        undecoded=tuple(skipped),
        file_runs=file_runs,
        archived=sum(report.archived for report in reports),
        kept_more=tuple(
            KeptLine(thread=one.thread, checkpoints=one.checkpoints, why=one.why)
            for report in reports
            for one in report.kept_more
        ),
    )
    if session.as_json:
        print_document(document)
        return
    verb = "would delete" if dry_run else "deleted"
    print_lines(f"{verb} thread {name}" for name in document.deleted)
    pruned = f"{counted(document.dropped, 'checkpoint')} of {counted(document.pruned, 'thread')}"
    threads, checked = counted(len(document.deleted), "thread"), counted(document.threads, "thread")
    print_lines([f"{verb} {threads} and {pruned}; {checked} checked"])
    if document.archived:
        done = "would archive" if dry_run else "archived"
        print_lines([f"{done} {counted(document.archived, 'checkpoint')}"])
    if file_runs:
        print_lines([f"{verb} {counted(len(file_runs), 'file run')}"])
    _say_why_more(document)
    for name in document.busy:
        say(f"{name} was being written to throughout: it is left for the next gc")
    for name, why in skipped.items():
        say(f"{name} was skipped: {why}")


_WHY = {
    "head": "their heads depend on those, which can be deleted after the next rollup",
    "young": "those are newer than --older-than",
}
_NAMED = 3


def _say_why_more(document: GcDocument) -> None:
    for why, text in _WHY.items():
        found = [line for line in document.kept_more if line.why == why]
        if found:
            named = [f"{line.thread} has {line.checkpoints}" for line in found[:_NAMED]]
            more = ", ..." if len(found) > _NAMED else ""
            kept = f"{counted(len(found), 'thread')} kept more than --keep-last"
            say(f"{kept} ({', '.join(named)}{more}): {text}")
