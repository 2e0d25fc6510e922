"""Addresses for threads, checkpoints and runs.

``demo`` is a thread, or its head; ``demo@2`` its checkpoint with seq 2; ``demo@019a...`` the one
whose id starts with that. A thread whose own name is ``joe@2`` is found by its whole name, unless
thread ``joe`` has a checkpoint 2: then the name is ambiguous.

Generated ids may be shortened while they stay unambiguous. Names chosen by users may not:
``order-1`` must never mean ``order-10``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from milecastle.app.threads.archived import readable_history, refuse_archived
from milecastle.app.threads.children import children_of, every_thread
from milecastle.errors import InvalidRequest, ThreadNotFound
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Store
from milecastle.support.printable import is_unsafe


def command_text(verb: str, *words: str, app: str | None = None) -> str:
    options = ["--app", app] if app else []
    # A name that looks like an option must come after `--`, and options before that.
    parts = (
        [*options, "--", *words] if any(w.startswith("-") for w in words) else [*words, *options]
    )
    return " ".join(["milecastle", verb, *map(_quoted, parts)])


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    shown = (
        char.encode("unicode_escape").decode() if is_unsafe(char) or char == "\\" else char
        for char in word
    )
    return "$'" + "".join(shown).replace("'", "\\'") + "'"


def bash_word(text: str) -> str:
    return "".join(char if char.isalnum() or char in "_@%+=:,./-" else f"\\{char}" for char in text)


_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORTEST = 4
_LONGEST_SEQ = 18
_PAGE = 1000


class CheckpointAddress(NamedTuple):
    key: ThreadKey
    seq: int
    is_head: bool = False

    def __str__(self) -> str:
        return f"{self.key.thread}@{self.seq}"


def find_thread(store: StoreReader, tenant: str, text: str) -> ThreadKey:
    """The thread with this name or id.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    key = ThreadKey(tenant, text)
    if has_thread(store, key):
        return key
    if len(text) >= _SHORTEST:
        page = store.threads(tenant, after=text, limit=2)
        found = [info.key for info in page if info.key.thread.startswith(text)]
        if found and _MADE.fullmatch(found[0].thread):
            if len(found) > 1:
                raise InvalidRequest(f"'{text}' matches several threads: type more of the name")
            return found[0]
    raise ThreadNotFound(tenant=tenant, thread=text, advice=_hint(store, key))


def all_threads(store: StoreReader, tenant: str, named: Sequence[str] = ()) -> Iterator[ThreadKey]:
    for text in named:
        key = find_thread(store, tenant, text)
        yield key
        yield from (info.key for info in children_of(store, key))
    if not named:
        yield from (info.key for info in every_thread(store, tenant, page=_PAGE))


def has_thread(store: StoreReader, key: ThreadKey) -> bool:
    return store.head(key) is not None or bool(store.runs(key, limit=1))


def _hint(store: StoreReader, key: ThreadKey) -> str:
    import difflib

    names = [info.key.thread for info in store.threads(key.tenant, limit=_PAGE)]
    near = difflib.get_close_matches(key.thread, names, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return "`milecastle ls` lists them" if names else "it has no threads at all"


def find_checkpoint(store: Store, tenant: str, text: str) -> CheckpointAddress:
    """The checkpoint with this address: by default the head.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    name, _, at = text.rpartition("@")
    if not name or not at:
        return _head(store, find_thread(store, tenant, text))
    if not has_thread(store, ThreadKey(tenant, text)):
        return _checkpoint(store, find_thread(store, tenant, name), at)
    head = _head(store, ThreadKey(tenant, text))
    try:
        other = _checkpoint(store, find_thread(store, tenant, name), at)
    except InvalidRequest:
        return head
    found = next(iter(store.history(other.key, limit=1, before=other.seq + 1)))
    raise InvalidRequest(
        f"'{text}' is both a thread and checkpoint {other.seq} of thread '{other.key.thread}': "
        f"use '{head}' for the thread, '{other.key.thread}@{found.id}' for the checkpoint"
    )


def _head(store: Store, key: ThreadKey) -> CheckpointAddress:
    newest = store.head(key)
    if newest is None:
        raise InvalidRequest(f"thread '{key.thread}' has runs but no checkpoints")
    return CheckpointAddress(key, newest.seq, is_head=True)


def _checkpoint(store: Store, key: ThreadKey, at: str) -> CheckpointAddress:
    # A seq has no leading zero, and an id created before the year 2500 has one.
    if at.isdecimal() and at[0] != "0" and len(at) <= _LONGEST_SEQ:
        seq = int(at)
        entry = next(iter(store.history(key, limit=1, before=seq + 1)), None)
        if entry is not None and entry.seq == seq:
            return CheckpointAddress(key, seq)
        refuse_archived(store, key, seq)
        raise InvalidRequest(
            f"thread '{key.thread}' has no checkpoint {seq}: "
            f"`{command_text('history', key.thread)}` lists them"
        )
    return _by_id(store, key, at)


def _by_id(store: Store, key: ThreadKey, text: str) -> CheckpointAddress:
    seq = store.locate(key, text)
    if seq is not None:
        return CheckpointAddress(key, seq)
    entries, missing = readable_history(store, key, limit=None)
    found = [entry for entry in entries if entry.id.startswith(text)]
    if len(found) == 1 and len(text) >= _SHORTEST:
        return CheckpointAddress(key, found[0].seq)
    if found:
        raise InvalidRequest(
            f"{len(found)} checkpoints of '{key.thread}' begin with '{text}': "
            "type more of the id, or use the seq"
        )
    raise missing or InvalidRequest(f"thread '{key.thread}' has no checkpoint with id {text}")


def find_run(store: StoreReader, key: ThreadKey, text: str) -> RunRecord:
    """A thread's run whose id starts with this prefix.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    found = [run for run in store.runs(key) if run.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    how_many = f"{len(found)} runs" if found else "no run"
    raise InvalidRequest(f"thread '{key.thread}' has {how_many} whose id begins with '{text}'")
