"""Rules that every store applies in the same way: the conflict of a writer, the limit of a cut."""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.checkpoint import SNAPSHOT, Entry
from milecastle.model.keys import ThreadKey


def conflict(key: ThreadKey, expected: int, head: int) -> Conflict:
    """The error for a writer that expected to append ``expected`` and found ``head``."""
    return Conflict(tenant=key.tenant, thread=key.thread, expected=expected, head=head)


def inputs_wait(key: ThreadKey, head: int) -> Conflict:
    """The error for a deletion at a head behind which inputs wait."""
    return _refusal(
        key,
        head,
        "was not deleted: inputs wait behind its runs; let workers run them, or delete it with "
        "take_over=True, which discards them",
    )


def input_known(key: ThreadKey, head: int) -> Conflict:
    """The error for a batch that starts a run with an input that a run of the thread has."""
    return _refusal(key, head, "has a run with this key by now; call again to get it")


def _refusal(key: ThreadKey, head: int, happened: str) -> Conflict:
    return Conflict(
        tenant=key.tenant, thread=key.thread, expected=head + 1, head=head, happened=happened
    )


def check_cut(key: ThreadKey, limit: int, cut: int, rewritten: Sequence[Entry]) -> None:
    """Refuse to prune above ``limit``, the ``roll_seq`` of the head."""
    if max([cut, *(entry.seq for entry in rewritten)]) > limit:
        raise InvalidRequest(
            f"thread '{key.thread}' cannot be pruned above seq {limit}: its writer may still need "
            "those entries for a rollup"
        )


def from_newest_snapshot(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Drop what a snapshot repeats: pruning may have put one into the middle of a chain."""
    first = len(entries) - 1
    while first > 0 and entries[first].kind != SNAPSHOT:
        first -= 1
    return tuple(entries[first:])
