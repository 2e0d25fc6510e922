"""What users may rely on, as rules about a history of public calls.

A *history* is what callers saw: every call with its outcome, what nodes really did, and what every
view shows at the end, when nothing is left to run. Each rule reads the history and yields what is
wrong with it. Drivers (``simulated``, ``claiming``, ``processes``) make histories; no rule knows
which of them did.

The outcome of a call is ``returned`` (acknowledged), ``refused`` (an error that says that nothing
was changed) or ``unknown`` (the answer was lost, or the caller died).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord

__all__ = ["Call", "Effect", "History", "Outcome", "Seen", "judge"]

Outcome = Literal["open", "returned", "refused", "unknown"]


class Call(msgspec.Struct, eq=False):
    """A call of the public interface. ``op`` is the operation or the answer that it brings.

    ``began`` and ``ended`` order it among all calls and effects; ``wall`` is when it began, in
    microseconds on the store's clock.
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
    """A thread at the end of a history, in every view."""

    log: Sequence[str]
    heard: Sequence[str]
    runs: Sequence[RunRecord]
    waiting: Sequence[str]
    statuses: Mapping[str, str]


class History(msgspec.Struct):
    """Calls and effects in their order; ``final`` has the threads that exist at the end."""

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
        call.outcome, call.ended = outcome, self.tick()

    def note(self, what: str, place: str, *, excused: bool = False) -> None:
        """Note what a node did."""
        self.effects.append(Effect(self.tick(), what, place, excused, self.clock()))

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


def judge(history: History) -> list[str]:
    """Everything that is wrong with a history."""
    found = list(history.wrong)
    for rule in RULES:
        found += rule(history)
    return list(dict.fromkeys(found))


# ---- inputs


def is_input(call: Call) -> bool:
    return call.verb in ("submit", "invoke")


def cancels(call: Call) -> bool:
    """Whether a call cancels a run on purpose, and perhaps the input of another caller."""
    return call.verb in ("cancel", "bulk cancel") or (is_input(call) and call.mode == "cancel")


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


def by_operation(history: History) -> dict[tuple[ThreadKey, str], list[Call]]:
    """The calls that brought each input."""
    found: dict[tuple[ThreadKey, str], list[Call]] = defaultdict(list)
    for call in history.calls:
        if is_input(call):
            found[call.key, call.op].append(call)
    return found


def acknowledged_inputs_are_applied_once(history: History) -> Iterator[str]:
    """Each once, unless an acknowledged call cancelled it."""
    for key, seen in history.final.items():
        for op, count in Counter(seen.log).items():
            if count > 1:
                yield f"input {op} of {key.thread} was applied {count} times"
    cancelled: Counter[ThreadKey] = Counter()
    for (key, op), calls in by_operation(history).items():
        thread = history.final.get(key)
        acknowledged = [call for call in calls if call.outcome == "returned"]
        if thread is not None and op in thread.log:
            if not any(call.may_count for call in calls):
                yield f"input {op} of {key.thread} was refused, and was applied"
        elif acknowledged:
            ended = _endings(thread, acknowledged)
            if not ended:
                yield from _deleted(history, key, op, acknowledged)
                continue
            cancelled[key] += 1
            budget = sum(map(cancels, history.of(key)))
            if not ended <= {"cancelled", "superseded", "failed"} or cancelled[key] > budget:
                how = ", ".join(sorted(ended))
                yield f"input {op} of {key.thread} was acknowledged and not applied ({how})"


def _endings(seen: Seen | None, acknowledged: Sequence[Call]) -> set[str]:
    """How the runs of an input ended, with their retries: the last of each family."""
    runs = seen.runs if seen else ()
    first = families(runs)
    named = {first.get(call.run_id) for call in acknowledged}
    retried = {run.previous_run_id for run in runs}
    return {run.status for run in runs if first[run.run_id] in named and run.run_id not in retried}


def _deleted(
    history: History, key: ThreadKey, op: str, acknowledged: Sequence[Call]
) -> Iterator[str]:
    """Its run is gone: it had been applied, or began, or was cancelled, before a deletion."""
    since = min(call.began for call in acknowledged)
    deletions = [call for call in history.of(key) if deletes(call) and over(call) > since]
    if not deletions:
        yield f"input {op} of {key.thread} was acknowledged, and its run is gone"
        return
    began = any(effect.place == op for effect in history.effects)
    if not began and not any(cancels(call) and over(call) > since for call in history.of(key)):
        yield f"input {op} of {key.thread} waited, and was lost by a deletion"


def a_key_identifies_one_run(history: History) -> Iterator[str]:
    """The run that a key started and its retries, for as long as the thread exists."""
    for (key, op), calls in by_operation(history).items():
        keyed = [call for call in calls if call.keyed and call.run_id]
        if not keyed or any(deletes(call) for call in history.of(key)):
            continue
        seen = history.final.get(key)
        is_moot = any(map(cancels, history.of(key)))  # its last node ended, and was not committed
        first = families(seen.runs if seen else ())
        named = {first.get(call.run_id, call.run_id) for call in keyed}
        if len(named) > 1:
            yield f"the key of input {op} of {key.thread} names {len(named)} runs"
        for call in keyed:
            is_applied = (
                seen is not None
                and not is_moot
                and op in seen.log
                and any(
                    effect.what == "ended" and effect.place == op and effect.time < call.began
                    for effect in history.effects
                )
            )
            if call.mode.startswith("again ") and is_applied and call.status != "completed":
                yield (
                    f"the key of input {op} of {key.thread}, which was applied, names a run "
                    f"that is {call.status} ({call.mode})"
                )


def order_is_kept(history: History) -> Iterator[str]:
    """An input that was acknowledged before another was sent is applied before it."""
    first: dict[tuple[ThreadKey, str], Call] = {}
    sent: dict[tuple[ThreadKey, str], int] = {}
    jumps: set[tuple[ThreadKey, str]] = set()
    for place, calls in by_operation(history).items():
        acknowledged = [call for call in calls if call.outcome == "returned"]
        if len(calls) > 1 and _was_deleted(history, place[1], calls[0].began):
            continue
        sent[place] = min(call.began for call in calls)
        if any(call.mode.endswith("cancel") for call in calls):
            jumps.add(place)
        if acknowledged:
            first[place] = min(acknowledged, key=lambda call: call.ended)
    for key, seen in history.final.items():
        latest = ("", 0)
        for op in seen.log:
            place = (key, op)
            if place in first and first[place].ended < latest[1]:
                yield f"input {op} of {key.thread} was applied after {latest[0]}, sent later"
            if place in sent and place not in jumps and sent[place] > latest[1]:
                latest = (op, sent[place])


def an_input_can_always_wait(history: History) -> Iterator[str]:
    """``if_busy="queue"`` is not refused on a thread that workers run."""
    acknowledged: set[tuple[ThreadKey, str]] = set()
    for call in history.calls:
        excused = call.key.tenant in history.pruned or call.key in history.invoked
        waits = call.verb == "submit" and call.mode.endswith("queue")
        is_new = (call.key, call.op) not in acknowledged
        if waits and call.outcome == "refused" and is_new and not excused:
            if any(deletes(each) and _overlap(call, each) for each in history.of(call.key)):
                continue
            yield f"an input was not allowed to wait in {call.key.thread}: {call.error}"
        if call.outcome == "returned":
            acknowledged.add((call.key, call.op))


def _overlap(one: Call, other: Call) -> bool:
    return one.began < over(other) and other.began < over(one)


# ---- time


EARLY = 10_000
"""By how many microseconds something may be early: the order of two clock readings."""


def nothing_is_early(history: History) -> Iterator[str]:
    """A delayed input begins after its delay, by the store's clock, whatever the caller's shows.

    Not one that waits behind another, or that somebody retries.
    """
    began = {effect.place: effect.wall for effect in history.effects if effect.what == "began"}
    for call in history.calls:
        due = call.wall + call.delay * 1_000_000 - EARLY
        if call.delay and began.get(call.op, due) < due:
            others = [each for each in history.of(call.key) if each is not call]
            waits = any(is_input(each) and each.began < call.ended for each in others)
            again = any(each.op == call.op or "retry" in each.verb for each in others)
            if not waits and not again:
                yield f"input {call.op} of {call.key.thread} began before its delay was over"


# ---- questions


def an_answer_is_heard_once(history: History) -> Iterator[str]:
    """By one question, and not lost once it was acknowledged."""
    for key, seen in history.final.items():
        for answer, count in Counter(seen.heard).items():
            if count > 1:
                yield f"answer {answer} in {key.thread} was taken by {count} questions"
    for call in history.calls:
        if call.verb != "answer" or call.outcome != "returned" or call.key not in history.final:
            continue
        is_moot = any(cancels(each) or deletes(each) for each in history.of(call.key))
        if not is_moot and call.op not in history.final[call.key].heard:
            yield f"answer {call.op} in {call.key.thread} was acknowledged, and no question took it"


# ---- recorded calls


def a_recorded_call_is_not_repeated(history: History) -> Iterator[str]:
    """What ``ctx.once`` and ``ctx.transaction`` have returned is not done again."""
    recorded: dict[str, int] = {}
    for effect in history.effects:
        if effect.what == "recorded":
            recorded[effect.place] = effect.time
        elif effect.what == "mail" and not effect.excused:
            since = recorded.get(effect.place)
            if since is not None and not _was_deleted(history, effect.place, since):
                yield f"the call at {effect.place} was repeated after it was recorded"
    for place, count in history.paid.items():
        if count > 1:
            yield f"the transaction at {place} was committed {count} times"
    for place in recorded:
        if place in history.paid and history.paid[place] == 0:
            yield f"the transaction at {place} was recorded and not committed"


def _was_deleted(history: History, place: str, since: int) -> bool:
    """Whether the thread of an input may have been deleted, and the input sent again."""
    op = place.partition("/")[0]
    keys = {call.key for call in history.calls if is_input(call) and call.op == op}
    return any(deletes(call) and over(call) > since for key in keys for call in history.of(key))


def a_living_worker_keeps_its_run(history: History) -> Iterator[str]:
    """A long node is not started again, if nothing has happened to its worker."""
    started: set[str] = set()
    for effect in history.effects:
        if effect.what == "lingers":
            if effect.place in started and not effect.excused:
                yield f"the node at {effect.place} was started again, and nothing had happened"
            started.add(effect.place)


# ---- views


def views_agree(history: History) -> Iterator[str]:
    """What a caller is shown was true at one moment; at the end all views show the same."""
    for call in history.calls:
        if call.outcome == "returned" and call.found is not None and call.verb in LOOKS:
            yield from _consistent(call, *call.found)
    for key, seen in history.final.items():
        if len(set(seen.statuses.values())) > 1:
            yield f"{key.thread} is {dict(seen.statuses)}"
        named = {run.run_id for run in seen.runs}
        if lost := [run_id for run_id in seen.waiting if run_id not in named]:
            yield f"{len(lost)} inputs wait in {key.thread} without a run"


LOOKS = ("state", "invoke")


def applied_inputs_stay_applied(history: History) -> Iterator[str]:
    """What a caller has seen applied, every later caller sees, unless the thread is deleted."""
    shown: dict[ThreadKey, tuple[int, frozenset[str]]] = {}
    for call in sorted(history.calls, key=lambda call: call.ended):
        if call.outcome != "returned" or call.verb != "state":
            continue
        time, before = shown.get(call.key, (0, frozenset[str]()))
        log = frozenset(call.found[3])
        if call.began > time and not before <= log and not any(map(deletes, history.of(call.key))):
            yield f"{call.key.thread} no longer shows {', '.join(sorted(before - log))}"
        shown[call.key] = (call.ended, log)


def _consistent(
    call: Call, status: str, next: Sequence[str], questions: int, log: Sequence[str]
) -> Iterator[str]:
    where = f"{call.verb} of {call.key.thread}"
    if status == "interrupted" and not questions:
        yield f"{where} shows 'interrupted' without a question (next {', '.join(next)})"
    if status == "completed" and next:
        yield f"{where} shows 'completed', and next is {', '.join(next)}"


RULES: Sequence[Callable[[History], Iterator[str]]] = (
    acknowledged_inputs_are_applied_once,
    a_key_identifies_one_run,
    order_is_kept,
    an_input_can_always_wait,
    nothing_is_early,
    an_answer_is_heard_once,
    a_recorded_call_is_not_repeated,
    a_living_worker_keeps_its_run,
    views_agree,
    applied_inputs_stay_applied,
)
