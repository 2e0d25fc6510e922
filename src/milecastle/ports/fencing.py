"""Rules every store applies alike: conflicts and cut limits."""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.errors import Conflict, InvalidRequest, MemoryChanged
from milecastle.model.checkpoint import SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.memory import MemoryWrite, StoredItem, namespace_of


def conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def input_known(key: ThreadKey, head: int) -> Conflict:
    return _refusal(key, head, "has a run with this key by now; call again to get it")


def message_waits(key: ThreadKey, head: int) -> Conflict:
    """Error for deleting a thread with an input, or with a message that makes it due."""
    return _refusal(
        key,
        head,
        "was not deleted: an input waits behind its runs, or a message it waits for came; let "
        "workers run it, or delete it with take_over=True, which discards both",
    )


def message_gone(key: ThreadKey, head: int) -> Conflict:
    return _refusal(
        key, head, "no longer has a message this run received: it was consumed or discarded"
    )


def memory_changed(write: MemoryWrite) -> MemoryChanged:
    return MemoryChanged(namespace=namespace_of(write.path), key=write.key, place=write.place)


def check_version(write: MemoryWrite, old: StoredItem | None) -> None:
    """Refuse a write that expects another version than the live item's."""
    if write.if_version not in (None, old.version if old else 0):
        raise memory_changed(write)


def _refusal(key: ThreadKey, head: int, happened: str) -> Conflict:
    return Conflict(
        tenant=key.tenant, thread=key.thread, expected=head + 1, head=head, happened=happened
    )


def check_cut(key: ThreadKey, limit: int, cut: int, rewritten: Sequence[Entry]) -> None:
    """Refuse to prune above ``limit``, the head's ``roll_seq``."""
    if max([cut, *(entry.seq for entry in rewritten)]) > limit:
        raise InvalidRequest(
            f"thread '{key.thread}' cannot be pruned above seq {limit}: its writer may still need "
            "those entries for a rollup"
        )


def check_oldest(key: ThreadKey, head: int, oldest: Entry, found: Entry | None) -> None:
    """Refuse to change a thread that was pruned, archived or restored since it was read.

    The payload is compared as well: it names what is archived.
    """
    if found is None or _identity(found) != _identity(oldest):
        raise pruned_meanwhile(key, head)


def _identity(entry: Entry) -> tuple[int, str, bytes]:
    return entry.seq, entry.id, entry.payload


def pruned_meanwhile(key: ThreadKey, head: int) -> Conflict:
    return _refusal(key, head, "was pruned or archived meanwhile; try again")


def from_newest_snapshot(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Drop entries a snapshot repeats: pruning may have put one inside a chain."""
    first = len(entries) - 1
    while first > 0 and entries[first].kind != SNAPSHOT:
        first -= 1
    return tuple(entries[first:])
