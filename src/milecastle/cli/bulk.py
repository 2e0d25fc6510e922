"""The same for many threads: retry, cancel or delete each, one after the other, with progress.

What is skipped is as ``milecastle.app.upkeep.changing`` says; why is on stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from milecastle.app.upkeep.changing import BulkAction, ThreadChange, change_listed
from milecastle.app.upkeep.removing import delete_thread
from milecastle.cli.printing import counted, say
from milecastle.cli.session import Session, keepers_of, with_keys
from milecastle.cli.verb import stored_app
from milecastle.errors import MilecastleError
from milecastle.model.run import ThreadInfo
from milecastle.ports.store import Store

__all__ = ["CHANGES", "change_all"]

_EVERY = 2.0
"""How many seconds pass between two lines of progress, at least."""


def _retry_all(session: Session) -> ThreadChange:
    """Hands a thread over to the workers again."""
    app, _ = stored_app(session)

    def retry(info: ThreadInfo) -> bool:
        if info.graph != app.graph.name:  # its code would run, and not that of the thread
            say(f"{info.key.thread} was skipped: it is of the graph '{info.graph}'")
            return False
        return not app.retry(info.key).reused

    return retry


def _cancel_all(session: Session) -> ThreadChange:
    """Closes the unfinished run of a thread, unless another one has it since it was listed."""
    keepers = keepers_of(session)

    def cancel(info: ThreadInfo) -> bool:
        return with_keys(keepers, lambda keeper: keeper.cancel(info.key, run_id=info.run_id))

    return cancel


def _delete_all(session: Session) -> ThreadChange:
    """Deletes a thread, unless it was run again since it was listed."""
    store, keyring = session.store(), session.keyring()

    def delete(info: ThreadInfo) -> bool:
        return delete_thread(store, info.key, keyring, take_over=False, run_id=info.run_id)

    return delete


CHANGES: Final[Mapping[BulkAction, tuple[Callable[[Session], ThreadChange], str]]] = {
    "retry": (_retry_all, "retried"),
    "cancel": (_cancel_all, "cancelled"),
    "delete": (_delete_all, "deleted"),
}
"""What makes each change, and its word in reports."""


def change_all(
    store: Store, threads: Iterable[ThreadInfo], change: ThreadChange, done: str
) -> tuple[int, int]:
    """Change each thread; how many were changed, and how many skipped."""
    changed = skipped = 0
    said = monotonic()
    for info in threads:
        if change_listed(store, info.key, (info.run_id, info.status), change, _refused):
            changed += 1
        else:
            skipped += 1
        if monotonic() - said >= _EVERY:
            said = monotonic()
            say(f"{counted(changed, 'run')} {done}, {skipped} skipped")
    return changed, skipped


def _refused(info: ThreadInfo, error: MilecastleError) -> None:
    say(f"{info.key.thread} was skipped: {error}")
