"""How people name threads, checkpoints and runs.

``demo`` is a thread, or its head; ``demo@2`` its checkpoint with seq 2; ``demo@019a...`` the one
whose id begins so. A thread whose own name has an ``@`` is found by its whole name.

Ids that Milecastle made may be cut short wherever what is left is unambiguous. Names that people
gave may not: ``order-1`` must never be taken for ``order-10``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from milecastle.app.children import children_of
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Store

__all__ = ["Address", "all_threads", "find_checkpoint", "find_run", "find_thread"]

_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORTEST = 4
_PAGE = 1000


class Address(NamedTuple):
    """A checkpoint that is there."""

    key: ThreadKey
    seq: int

    def __str__(self) -> str:
        return f"{self.key.thread}@{self.seq}"


def find_thread(store: Store, tenant: str, text: str) -> ThreadKey:
    """The thread that is meant.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    key = ThreadKey(tenant, text)
    if _is_there(store, key):
        return key
    if len(text) >= _SHORTEST:
        page = store.threads(tenant, after=text, limit=2)
        found = [info.key for info in page if info.key.thread.startswith(text)]
        if found and _MADE.fullmatch(found[0].thread):
            if len(found) > 1:
                raise InvalidRequest(f"'{text}' is the beginning of several threads: write more")
            return found[0]
    raise InvalidRequest(f"there is no thread '{text}' in tenant '{tenant}'{_hint(store, key)}")


def all_threads(store: Store, tenant: str, named: Sequence[str] = ()) -> Iterator[ThreadKey]:
    """Every thread of a tenant, or those that are named; with those of their subgraphs."""
    for text in named:
        key = find_thread(store, tenant, text)
        yield key
        yield from (info.key for info in children_of(store, key))
    last: str | None = None
    while not named and (page := store.threads(tenant, limit=_PAGE, after=last)):
        yield from (info.key for info in page)
        last = page[-1].key.thread


def _is_there(store: Store, key: ThreadKey) -> bool:
    return next(iter(store.history(key, limit=1)), None) is not None or bool(
        store.runs(key, limit=1)
    )


def _hint(store: Store, key: ThreadKey) -> str:
    import difflib

    names = [info.key.thread for info in store.threads(key.tenant, limit=_PAGE)]
    near = difflib.get_close_matches(key.thread, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return ": `milecastle ls` lists them" if names else ", which has no threads at all"


def find_checkpoint(store: Store, tenant: str, text: str) -> Address:
    """The checkpoint that is meant: by default the head.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    name, _, at = text.rpartition("@")
    if not name or not at or _is_there(store, ThreadKey(tenant, text)):
        key = find_thread(store, tenant, text)
        newest = next(iter(store.history(key, limit=1)), None)
        if newest is None:
            raise InvalidRequest(f"thread '{key.thread}' has runs and no checkpoints")
        return Address(key, newest.seq)
    key = find_thread(store, tenant, name)
    # A seq has no leading zero, and an id that was made before the year 2500 has one.
    if at.isdecimal() and at[0] != "0":
        return _by_seq(store, key, int(at))
    return _by_id(store, key, at)


def _by_seq(store: Store, key: ThreadKey, seq: int) -> Address:
    entry = next(iter(store.history(key, limit=1, before=seq + 1)), None)
    if entry is not None and entry.seq == seq:
        return Address(key, seq)
    raise InvalidRequest(
        f"thread '{key.thread}' has no checkpoint {seq}: "
        f"`milecastle history {key.thread}` lists them"
    )


def _by_id(store: Store, key: ThreadKey, text: str) -> Address:
    seq = store.locate(key, text)
    if seq is not None:
        return Address(key, seq)
    found = [entry for entry in store.history(key) if entry.id.startswith(text)]
    if len(found) == 1 and len(text) >= _SHORTEST:
        return Address(key, found[0].seq)
    if found:
        raise InvalidRequest(
            f"{len(found)} checkpoints of '{key.thread}' begin with '{text}': "
            "write more of the id, or the seq"
        )
    raise InvalidRequest(f"thread '{key.thread}' has no checkpoint with id {text}")


def find_run(store: Store, key: ThreadKey, text: str) -> RunRecord:
    """The run of a thread whose id begins so.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    found = [run for run in store.runs(key) if run.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    how_many = f"{len(found)} runs" if found else "no run"
    raise InvalidRequest(f"thread '{key.thread}' has {how_many} whose id begins with '{text}'")
