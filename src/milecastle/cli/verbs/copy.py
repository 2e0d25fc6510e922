from __future__ import annotations

from collections.abc import Iterator

import click

from milecastle.app.threads.children import is_child, root_of
from milecastle.app.upkeep.copying import CopyReport, copy_threads
from milecastle.app.upkeep.copying_memory import copy_memory
from milecastle.cli.addressing import all_threads
from milecastle.cli.printing import ProgressReport, counted
from milecastle.cli.session import Session, check_place, masked
from milecastle.cli.verb import verb
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.views.documents import CopyDocument


@click.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--thread", "threads", metavar="NAME", multiple=True, help="Only this thread; may be repeated."
)
@click.option("--memory", is_flag=True, help="Also items of long-term memory.")
@verb
def command(
    session: Session, source: str, target: str, threads: tuple[str, ...], memory: bool
) -> None:
    """Copy threads from one store to another.

    Both are URLs. Nothing in the target is overwritten; a second copy adds what is new. Exit code
    6: the target has another history under the name of a thread. Buckets and limits are not copied,
    long-term memory with --memory: all items of the tenant the target does not have. Their
    versions and times start again.
    """
    check_place(source)
    here, there = session.open(source), session.open_bare(target)
    items = copy_memory(here, there, session.tenant) if memory else 0
    looked_at = changed = checkpoints = 0
    for name in ProgressReport("copying").over(_names(here, session.tenant, threads)):
        report: CopyReport = copy_threads(here, there, session.tenant, threads=[name])
        looked_at += report.threads
        changed += report.changed
        checkpoints += report.checkpoints
    document = CopyDocument(
        tenant=session.tenant,
        source=masked(source),
        target=masked(target),
        threads=looked_at,
        changed=changed,
        checkpoints=checkpoints,
        items=items,
    )
    copied = counted(checkpoints, "checkpoint")
    if memory:
        copied += f" and {counted(items, 'item')}"
    session.report(
        document, [f"{counted(looked_at, 'thread')}, {changed} changed, {copied} copied"]
    )


def _names(store: Store, tenant: str, threads: tuple[str, ...]) -> Iterator[str]:
    """The threads to copy: those of subgraphs only if their parent was deleted."""
    root: ThreadKey | None = None
    for key in all_threads(store, tenant, threads):
        if is_child(key) and root_of(key) == root:
            continue
        root = key
        yield key.thread
