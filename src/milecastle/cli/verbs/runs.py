"""``milecastle runs``: the records of runs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from milecastle.app.children import own_threads
from milecastle.cli.addressing import all_threads, find_run, find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.documents import RunLine, RunsDocument
from milecastle.cli.lines import print_facts, print_failure, run_line, run_row
from milecastle.cli.printing import print_document, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Store

__all__ = ["command"]


@click.command("runs")
@click.argument("thread", metavar="[THREAD]", required=False, shell_complete=complete_threads)
@click.option("--run", "run_id", metavar="ID", help="Only this run, in full; a prefix will do.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="At most so many of each thread."
)
@click.option("--subgraphs", is_flag=True, help="Also the runs of subgraphs.")
@app_option
@verb
def command(
    session: Session, thread: str | None, run_id: str | None, limit: int | None, subgraphs: bool
) -> None:
    """List runs, or show one with its failure.

    Of one thread or of all, newest first within a thread.
    """
    if run_id and not thread:
        raise click.UsageError("--run needs the thread as well: milecastle runs THREAD --run ID")
    store = session.store()
    lines = tuple(
        run_line(run, store.failure(run.key, run.run_id))
        for run in _found(session, thread, run_id, limit, subgraphs)
    )
    if session.as_json:
        print_document(RunsDocument(tenant=session.tenant, runs=lines))
    elif run_id:
        _print_run(lines[0])
    elif not lines:
        say(f"tenant '{session.tenant}' has no runs in {session.describe_store()}")
    else:
        head = ["THREAD", "RUN", "STATUS", "GRAPH", "RETRY", "STARTED", "ENDED", "FAILURE"]
        print_table(head, [run_row(line) for line in lines])


def _found(
    session: Session,
    thread: str | None,
    run_id: str | None,
    limit: int | None,
    subgraphs: bool,
) -> Iterator[RunRecord]:
    store = session.store()
    if thread is not None and run_id:
        yield find_run(store, find_thread(store, session.tenant, thread), run_id)
        return
    for key in _keys(store, session.tenant, thread, subgraphs):
        yield from store.runs(key, limit=limit)


def _keys(store: Store, tenant: str, thread: str | None, subgraphs: bool) -> Iterator[ThreadKey]:
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
