"""Run records.

Bulk work uses ``fleet.bulk``, with progress and each skipped thread's reason on stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Final

import click

from milecastle.app.threads.children import own_threads
from milecastle.cli.addressing import all_threads, find_run, find_thread, has_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.printing import (
    counted,
    print_document,
    print_facts,
    print_failure,
    print_table,
    say,
)
from milecastle.cli.session import Session, keepers_of, with_keys
from milecastle.cli.verb import app_option, stored_app, verb, workspace_option
from milecastle.errors import Corrupted, MilecastleError
from milecastle.fleet.bulk import BulkAction, ThreadChange, change_threads, deletion, why_not
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Store
from milecastle.views.documents import RunLine, RunsDocument
from milecastle.views.lines import run_line, run_row
from milecastle.views.listing import found_threads
from milecastle.views.showing import run_lines


@click.command("runs")
@click.argument("thread", metavar="[THREAD]", required=False, shell_complete=complete_threads)
@click.option(
    "--run", "run_id", metavar="ID", help="Only this run, in full; a prefix of its id is enough."
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number to list per thread."
)
@click.option("--subgraphs", is_flag=True, help="Include runs of subgraphs.")
@click.option(
    "--status",
    type=click.Choice(
        ["queued", "running", "interrupted", "sleeping", "failed", "cancelled", "completed"]
    ),
    help="Only the current runs of threads with this status.",
)
@click.option("--graph", metavar="NAME", help="With --status: only of this graph.")
@click.option("--retry-all", is_flag=True, help="Queue those that failed for the workers again.")
@click.option("--cancel-all", is_flag=True, help="Close those that have not ended.")
@click.option("--delete-all", is_flag=True, help="Delete their threads, with all runs.")
@workspace_option
@app_option
@verb
def command(
    session: Session,
    thread: str | None,
    run_id: str | None,
    limit: int | None,
    subgraphs: bool,
    status: RunStatus | None,
    graph: str | None,
    retry_all: bool,
    cancel_all: bool,
    delete_all: bool,
    workspace: str | None,
) -> None:
    """List runs, or show one with its failure.

    Of one thread or of all, newest first within a thread; file runs come last. With --status
    the runs of one status are listed, retried, cancelled or deleted, one after the other: it is
    safe to interrupt this and to call it again.
    """
    flags: dict[BulkAction, bool] = {"retry": retry_all, "cancel": cancel_all, "delete": delete_all}
    given: list[BulkAction] = [action for action, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise click.UsageError("one of --retry-all, --cancel-all and --delete-all at a time")
    action = given[0] if given else None
    if status is None and (graph or action):
        raise click.UsageError("--graph and --...-all need --status")
    if status is not None:
        if thread is not None or run_id or subgraphs or workspace:
            raise click.UsageError("--status lists threads of the store: name none")
        _of_status(session, status, graph, limit, action)
        return
    if run_id and not thread:
        raise click.UsageError("--run needs the thread as well: milecastle runs THREAD --run ID")
    from milecastle.cli.file_runs import no_thread, open_source

    store, files = open_source(session, workspace)
    lines: list[RunLine] = []
    if files is not None:
        of_files = files.runs(thread, None if thread and run_id else limit)
        wanted = [run for run in of_files if not thread or run.run_id.startswith(run_id or "")]
        lines = [run_line(run, files.failure(run)) for run in wanted]
    if store is not None and (
        thread is None or not lines or has_thread(store, session.key(thread))
    ):
        key = find_thread(store, session.tenant, thread) if thread else None
        lists = session.listed(store, key)
        kept = _found(session, lists, thread, run_id, limit, subgraphs)
        lines = [*run_lines(lists, kept), *lines]
    if thread is not None and not lines:
        raise no_thread(session, thread)
    if run_id and not session.as_json:
        _print_run(lines[0])
    else:
        _print_runs(session, lines)


def _of_status(
    session: Session,
    status: RunStatus,
    graph: str | None,
    limit: int | None,
    action: BulkAction | None,
) -> None:
    if action is not None and (why := why_not(action, status)) is not None:
        raise click.UsageError(f"--{action}-all {why}")
    store = session.store()
    if action is None:
        lists = session.listed(store)
        listed = islice(found_threads(lists, session.tenant, status, graph), limit)
        runs = [run for info in listed if (run := lists.run(info.key, info.run_id)) is not None]
        _print_runs(session, run_lines(lists, runs))
        return
    found = islice(found_threads(store, session.tenant, status, graph), limit)
    make, what = CHANGES[action]
    changed, skipped = change_all(store, found, status, make(session), what)
    document = RunsDocument(tenant=session.tenant, runs=(), changed=changed, skipped=skipped)
    session.report(document, [f"{counted(changed, 'run')} {what}, {skipped} skipped"])


def _print_runs(session: Session, lines: Sequence[RunLine]) -> None:
    if session.as_json:
        print_document(RunsDocument(tenant=session.tenant, runs=tuple(lines)))
    elif not lines:
        say(f"tenant '{session.tenant}' has no runs in {session.describe_store()}")
    else:
        head = ["THREAD", "RUN", "STATUS", "GRAPH", "RETRY", "STARTED", "ENDED", "FAILURE"]
        print_table(head, [run_row(line) for line in lines])


def _found(
    session: Session,
    store: StoreReader,
    thread: str | None,
    run_id: str | None,
    limit: int | None,
    subgraphs: bool,
) -> Iterator[RunRecord]:
    if thread is not None and run_id:
        yield find_run(store, find_thread(store, session.tenant, thread), run_id)
        return
    for key in _keys(store, session.tenant, thread, subgraphs):
        try:
            yield from store.runs(key, limit=limit)
        except Corrupted as error:
            if thread is not None:
                raise
            _skip(key.thread, error)


def _keys(
    store: StoreReader, tenant: str, thread: str | None, subgraphs: bool
) -> Iterator[ThreadKey]:
    if subgraphs:
        yield from all_threads(store, tenant, [thread] if thread else [])
    elif thread is not None:
        yield find_thread(store, tenant, thread)
    else:
        yield from (info.key for info in own_threads(store, tenant))


def _print_run(line: RunLine) -> None:
    facts = {
        "thread": line.thread,
        "run": line.run_id,
        "status": line.status,
        "graph": f"{line.graph or '-'} ({line.fingerprint or 'no fingerprint'})",
        "mode": line.mode,
        "retry": str(line.retry_count),
        "previous": line.previous_run_id or "-",
        "started": line.started_at,
        "ended": line.ended_at or "-",
        **line.metadata,
    }
    print_facts(facts)
    if line.failure:
        print_failure(line.failure)


_EVERY = 2.0
"""How many seconds pass between two lines of progress, at least."""


def _retry_all(session: Session) -> ThreadChange:
    app, _ = stored_app(session)

    def retry(info: ThreadInfo) -> bool:
        if info.graph != app.graph.name:  # its code would run, and not that of the thread
            say(f"{info.key.thread} was skipped: it is of the graph '{info.graph}'")
            return False
        return not app.retry(info.key).reused

    return retry


def _cancel_all(session: Session) -> ThreadChange:
    """Closes a thread's unfinished run, unless another one has it since it was listed."""
    keepers = keepers_of(session)

    def cancel(info: ThreadInfo) -> bool:
        return with_keys(keepers, lambda keeper: keeper.cancel(info.key, run_id=info.run_id))

    return cancel


CHANGES: Final[Mapping[BulkAction, tuple[Callable[[Session], ThreadChange], str]]] = {
    "retry": (_retry_all, "retried"),
    "cancel": (_cancel_all, "cancelled"),
    "delete": (lambda session: deletion(session.store(), session.keyring()), "deleted"),
}
"""What makes each change, and its word in reports."""


def change_all(
    store: Store, threads: Iterable[ThreadInfo], status: RunStatus, change: ThreadChange, done: str
) -> tuple[int, int]:
    changed = skipped = 0
    said = monotonic()
    listed = ((info.key, info.run_id) for info in threads)
    for is_changed in change_threads(
        store, listed, status, change, lambda info, error: _skip(info.key.thread, error)
    ):
        changed, skipped = changed + is_changed, skipped + (not is_changed)
        if monotonic() - said >= _EVERY:
            said = monotonic()
            say(f"{counted(changed, 'run')} {done}, {skipped} skipped")
    return changed, skipped


def _skip(thread: str, error: MilecastleError) -> None:
    say(f"{thread} was skipped: {error}")
