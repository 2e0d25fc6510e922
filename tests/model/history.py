"""A history: what callers saw, what nodes really did, and what every view shows at the end.

The outcome of a call is ``returned`` (acknowledged), ``refused`` (an error that says that nothing
was changed) or ``unknown`` (the answer was lost, or the caller died).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from tests.model.remembering import Shown

__all__ = [
    "PAST",
    "Call",
    "Effect",
    "History",
    "Outcome",
    "Past",
    "Seen",
    "cancels",
    "deletes",
    "families",
    "is_input",
    "over",
    "reverts",
]

PAST = ("past", "archive", "prune", "restore")
"""Calls that return the history of their thread, read at their end."""

Past = tuple[int, str, int | None]
"""A checkpoint of a history: its seq, its id, and a digest of its state if that was read."""

Outcome = Literal["open", "returned", "refused", "unknown"]


class Call(msgspec.Struct, eq=False):
    """A call of the public interface. ``op`` is the input, answer or message that it is about.

    ``began`` and ``ended`` order it among all calls and effects; ``wall`` and ``until`` are when
    it began and ended, in microseconds on the store's clock. A message has ``quiet``, and may have
    ``at_most``, in seconds.
    """

    verb: str
    key: ThreadKey
    op: str = ""
    mode: str = ""
    keyed: bool = False
    delay: float = 0.0
    wall: int = 0
    began: int = 0
    ended: int = 1 << 62
    outcome: Outcome = "open"
    run_id: str = ""
    status: str = ""
    found: Any = None
    error: str = ""
    configured: bool = False
    applied: tuple[str, ...] = ()
    until: int = 1 << 62
    quiet: float = 0.0
    at_most: float | None = None

    @property
    def may_count(self) -> bool:
        """Whether it may have had an effect."""
        return self.outcome in ("returned", "unknown", "open")

    def __str__(self) -> str:
        given = " ".join(filter(None, (self.op, self.mode, "key" if self.keyed else "")))
        found = f" {self.found}" if self.found not in (None, "") else ""
        what = f"{self.outcome} {self.status} {self.run_id[-4:]}{found} {self.error}".strip()
        place = f"{self.key.tenant}/{self.key.thread}"
        return f"{self.began:5}..{self.ended:5} {self.verb} {place} {given} -> {what}"


class Effect(msgspec.Struct, frozen=True):
    """Something that a node did. ``excused``: a fault explains that it was done again."""

    time: int
    what: str
    place: str
    excused: bool = False
    wall: int = 0


class Seen(msgspec.Struct, frozen=True):
    """A thread at the end of a history, in every view.

    ``applied`` are the messages in its state, ``ever`` those in any of its checkpoints. Those that
    parallel tasks received end with ``*``; ``mixed`` are their records of another message.
    ``wrote`` are the writes to memory of the steps of any of its checkpoints, ``damage`` is what
    ``verify`` found if the store has an archive.
    """

    log: Sequence[str]
    heard: Sequence[str]
    runs: Sequence[RunRecord]
    waiting: Sequence[str]
    statuses: Mapping[str, str]
    applied: Sequence[str] = ()
    ever: Sequence[str] = ()
    mixed: Sequence[str] = ()
    unread: Sequence[str] = ()
    wrote: Sequence[str] = ()
    damage: Sequence[str] = ()


class History(msgspec.Struct):
    """Calls and effects in their order; ``final`` has the threads that exist at the end.

    ``memory`` has the items of each tenant at the end, by name, with versions and values;
    ``buckets`` the rate and burst of each, by tenant. With ``hooks`` events are delivered.
    """

    calls: list[Call] = []
    effects: list[Effect] = []
    final: dict[ThreadKey, Seen] = {}
    wrong: list[str] = []
    paid: Counter[str] = msgspec.field(default_factory=Counter[str])
    invoked: set[ThreadKey] = set()
    pruned: set[str] = set()
    time: int = 0
    clock: Callable[[], int] = lambda: 0
    names: set[str] = set()
    memory: dict[str, Shown] = {}
    buckets: dict[str, tuple[int, int]] = {}
    hooks: bool = False

    def tick(self) -> int:
        """The next moment."""
        self.time += 1
        return self.time

    def begin(self, call: Call) -> Call:
        """Note that a call begins."""
        call.began, call.wall = self.tick(), self.clock()
        self.calls.append(call)
        if call.verb in ("invoke", "resume"):
            self.invoked.add(call.key)
        return call

    def end(self, call: Call, outcome: Outcome) -> None:
        """Note how a call ended."""
        call.outcome, call.ended, call.until = outcome, self.tick(), self.clock()

    def note(self, what: str, place: str, *, excused: bool = False) -> None:
        """Note what a node did."""
        self.effects.append(Effect(self.tick(), what, place, excused, self.clock()))

    def children(self) -> dict[ThreadKey, str]:
        """The threads that nodes started: each with the place of its start."""
        inputs = {call.op: call.key for call in self.calls if is_input(call)}
        found: dict[ThreadKey, str] = {}
        for effect in self.effects:
            if effect.what in ("spawned", "left"):
                place, _, child = effect.place.partition("=")
                found[ThreadKey(inputs[place.partition("/")[0]].tenant, child)] = place
        return found

    def in_milliseconds(self) -> list[Call]:
        """The calls, with times since the first: for histories in nanoseconds."""
        start = self.calls[0].began if self.calls else 0
        for call in self.calls:
            call.began, call.ended = (call.began - start) // 10**6, (call.ended - start) // 10**6
        return self.calls

    def of(self, key: ThreadKey, *verbs: str) -> Iterator[Call]:
        """The calls about a thread that may have had an effect; of these verbs if some are given.

        Calls about a whole tenant are about each of its threads.
        """
        for call in self.calls:
            is_near = call.key == key or (call.key.tenant == key.tenant and call.key.thread == "*")
            if is_near and call.may_count and (not verbs or call.verb in verbs):
                yield call

    def was_deleted(self, place: str, since: int) -> bool:
        """Whether the thread of an input may have been deleted, and the input sent again."""
        op = place.partition("/")[0]
        keys = {call.key for call in self.calls if is_input(call) and call.op == op}
        return any(deletes(call) and over(call) > since for key in keys for call in self.of(key))


def is_input(call: Call) -> bool:
    return call.verb in ("submit", "invoke")


def cancels(call: Call) -> bool:
    """Whether a call cancels a run on purpose, and perhaps the input of another caller."""
    return call.verb in ("cancel", "bulk cancel") or (is_input(call) and call.mode == "cancel")


def reverts(call: Call) -> bool:
    """Whether a run may have been started from the state before another."""
    return cancels(call) or (is_input(call) and call.mode.endswith("cancel"))


def deletes(call: Call) -> bool:
    return call.verb in ("delete", "retain", "bulk delete")


def over(call: Call) -> int:
    """When a call has no more effect: a bulk job works after it was accepted."""
    return 1 << 62 if call.verb.startswith("bulk ") else call.ended


def families(runs: Iterable[RunRecord]) -> dict[str, str]:
    """The first run of each run: a retry continues the run before it."""
    before = {run.run_id: run.previous_run_id for run in runs}
    found: dict[str, str] = {}
    for run_id in before:
        first = run_id
        while (earlier := before.get(first)) is not None:
            first = earlier
        found[run_id] = first
    return found
