"""Changing many threads, one after the other, while others may change them too.

Rules:

- What a thread is comes from the index, again right before it is changed: one that others have
  changed since it was listed is skipped. So is one that refuses.
- Whatever interrupts it, what was done is done. Called again it finds what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from milecastle.engine.status import claimed
from milecastle.errors import Conflict, MilecastleError, StoreError
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store

__all__ = ["CHANGEABLE", "BulkAction", "ThreadChange", "change_listed"]

ThreadChange = Callable[[ThreadInfo], bool]

BulkAction = Literal["retry", "cancel", "delete"]

_WAITING: Final = ("interrupted", "sleeping")
_STOPPED: Final = ("failed", "cancelled")

CHANGEABLE: Final[Mapping[BulkAction, tuple[RunStatus, ...]]] = MappingProxyType(
    {
        "retry": _STOPPED,
        "cancel": ("queued", "running", *_WAITING),
        "delete": (*_STOPPED, *_WAITING, "completed"),
    }
)
"""Which threads can be changed, by status, and how. Those that workers have refuse deletion."""


def change_listed(
    store: Store,
    key: ThreadKey,
    listed: tuple[str, RunStatus],
    change: ThreadChange,
    refused: Callable[[ThreadInfo, MilecastleError], None],
) -> bool:
    """Change a thread that was listed with a run and its status.

    ``False`` if it is not as listed any more, or refuses.
    """
    found = store.thread(key)
    info = found and claimed(found)
    if info is None or (info.run_id, info.status) != listed:
        return False
    try:
        return change(info)
    except Conflict:
        return False
    except StoreError:
        raise
    except MilecastleError as error:
        refused(info, error)
        return False
