"""The same for many threads: retry or cancel each, one commit after the other, with progress.

Rules:

- What a thread is comes from the index, again right before it is changed: one that others have
  changed since it was listed is skipped. So is one that refuses, with its reason on stderr.
- Whatever interrupts it, what was done is done. Called again it finds what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from milecastle.cli.printing import counted, say
from milecastle.cli.session import Session, keepers_of, with_keys
from milecastle.cli.verb import stored_app
from milecastle.errors import Conflict, MilecastleError, StoreError
from milecastle.model.run import ThreadInfo
from milecastle.ports.store import Store

__all__ = ["cancel_all", "change_all", "retry_all"]

ThreadChange = Callable[[ThreadInfo], bool]

_EVERY = 2.0
"""How many seconds pass between two lines of progress, at least."""


def retry_all(session: Session) -> ThreadChange:
    """Hands a thread over to the workers again."""
    app, _ = stored_app(session)

    def retry(info: ThreadInfo) -> bool:
        if info.graph != app.graph.name:  # its code would run, and not that of the thread
            say(f"{info.key.thread} was skipped: it is of the graph '{info.graph}'")
            return False
        return not app.retry(info.key).reused

    return retry


def cancel_all(session: Session) -> ThreadChange:
    """Closes the unfinished run of a thread."""
    keepers = keepers_of(session)
    return lambda info: with_keys(keepers, lambda keeper: keeper.cancel(info.key))


def change_all(
    store: Store, threads: Iterable[ThreadInfo], change: ThreadChange, done: str
) -> tuple[int, int]:
    """Change each thread; how many were changed, and how many skipped."""
    changed = skipped = 0
    said = monotonic()
    for info in threads:
        if _is_changed(store, info, change):
            changed += 1
        else:
            skipped += 1
        if monotonic() - said >= _EVERY:
            said = monotonic()
            say(f"{counted(changed, 'run')} {done}, {skipped} skipped")
    return changed, skipped


def _is_changed(store: Store, info: ThreadInfo, change: ThreadChange) -> bool:
    known = store.thread(info.key)
    if known is None or (known.run_id, known.status) != (info.run_id, info.status):
        return False
    try:
        return change(info)
    except Conflict:
        return False
    except StoreError:
        raise
    except MilecastleError as error:
        say(f"{info.key.thread} was skipped: {error}")
        return False
