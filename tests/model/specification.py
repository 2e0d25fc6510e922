"""What users may rely on, as rules about a history of public calls.

Each rule reads the history and yields what is wrong with it. Drivers (``simulated``, ``claiming``,
``processes``) make histories; no rule knows which of them did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from milecastle.model.keys import ThreadKey
from tests.model.history import (
    PAST,
    Call,
    History,
    Past,
    Seen,
    cancels,
    deletes,
    families,
    is_input,
    over,
    reverts,
)
from tests.model.shared_rules import SHARED_RULES

__all__ = ["judge"]


def judge(history: History) -> list[str]:
    """Everything that is wrong with a history."""
    found = list(history.wrong)
    for rule in RULES:
        found += rule(history)
    return list(dict.fromkeys(found))


# ---- inputs


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
        acknowledged = [  # not by a call whose caller was told of a failed run
            call for call in calls if call.outcome == "returned" and call.status != "failed"
        ]
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
    """Its run is gone: it had been applied, or began, or was cancelled, before a deletion.

    It began when a worker had committed that it runs: from then on it does not wait, and a thread
    that no living process drives may be deleted, even before a node was called.
    """
    since = min(call.began for call in acknowledged)
    deletions = [call for call in history.of(key) if deletes(call) and over(call) > since]
    if not deletions:
        yield f"input {op} of {key.thread} was acknowledged, and its run is gone"
        return
    places = {op, *(call.run_id for call in acknowledged)}
    began = any(effect.place in places for effect in history.effects)
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
        if len(calls) > 1 and history.was_deleted(place[1], calls[0].began):
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
    children = history.children()
    inputs = {call.op: call.key for call in history.calls if is_input(call)}
    for call in history.calls:
        if call.verb != "answer" or call.outcome != "returned" or call.key not in history.final:
            continue
        parent = inputs.get(children.get(call.key, "").partition("/")[0], call.key)
        near = (*history.of(call.key), *history.of(parent))  # a child is cancelled with its parent
        is_moot = any(cancels(each) or deletes(each) for each in near)
        if not is_moot and call.op not in history.final[call.key].heard:
            yield f"answer {call.op} in {call.key.thread} was acknowledged, and no question took it"

    for call in history.calls:
        tells = any(
            each.op == call.op and each.may_count for each in history.calls if each is not call
        )
        is_no = call.verb == "answer" and call.outcome == "refused" and not tells
        if is_no and call.key in history.final and call.op in history.final[call.key].heard:
            yield f"answer {call.op} in {call.key.thread} was refused, and a question took it"


def a_question_is_decided_once(history: History) -> Iterator[str]:
    """By an answer or by its deadline, and every attempt of the node gets the same."""
    known: dict[str, tuple[str, int]] = {}
    for effect in history.effects:
        if effect.what == "decided":
            place, _, said = effect.place.partition("=")
            before, since = known.setdefault(place, (said, effect.time))
            if said != before and not history.was_deleted(place, since):
                yield f"the question at {place} was decided twice: {before!r} and {said!r}"


def config_is_the_submitted_one(history: History) -> Iterator[str]:
    """That of the input, or of an earlier one in its thread; a child has that of its parent."""
    calls = {call.op: call for call in history.calls if is_input(call)}
    for effect in history.effects:
        if effect.what == "config":
            place, _, found = effect.place.partition("=")
            op = place.partition("/")[0]
            call, other = calls.get(op), calls.get(found)
            if call is not None and call.configured and found != op:
                yield f"input {op} has the config of {found or 'nobody'}"
            elif found and (call is None or other is None or other.key != call.key):
                yield f"input {op} has the config of {found}, of another thread"


# ---- messages


def messages_are_applied_once(history: History) -> Iterator[str]:
    """An acknowledged message is applied, discarded or unread: one of them.

    So is one that a node sent. None of them after a refusal; unless the thread was deleted. What a
    parallel task has made of a message stays, if that is discarded before the step ends.
    """
    for key, seen in history.final.items():
        for name, count in Counter(map(_bare, (*seen.applied, *seen.unread))).items():
            if count > 1:
                yield f"message {name} in {key.thread} was applied {count} times, or is unread too"
    for (key, name), calls in _by_message(history).items():
        thread = history.final.get(key)
        there = (*thread.ever, *thread.unread) if thread else ()
        is_there = name in map(_bare, there)
        discards = [each for each in history.of(key, "discard") if each.op == name]
        gone = [each for each in discards if each.outcome == "returned" and each.found]
        if name in there and gone:
            yield f"message {name} in {key.thread} was discarded, and is there"
        if is_there and not any(call.may_count for call in calls):
            yield f"message {name} in {key.thread} was refused, and is there"
        is_known = any(call.outcome == "returned" for call in calls)
        is_gone = gone or any(each.outcome != "returned" for each in discards)
        if is_known and not is_there and not is_gone:
            since = min(call.began for call in calls)
            if not any(deletes(each) and over(each) > since for each in history.of(key)):
                yield f"message {name} in {key.thread} was acknowledged, and is gone"


def _bare(name: str) -> str:
    return name.removesuffix("*")


def _by_message(history: History) -> dict[tuple[ThreadKey, str], list[Call]]:
    """The calls that brought each message. One from a node was acknowledged to it."""
    found: dict[tuple[ThreadKey, str], list[Call]] = defaultdict(list)
    for call in history.calls:
        if call.verb == "send":
            found[call.key, call.op].append(call)
    inputs = {call.op: call.key for call in history.calls if is_input(call)}
    for effect in history.effects:
        if effect.what == "told":
            key, time = inputs[effect.place.partition("/")[0]], effect.time
            told = Call("send", key, effect.place, "b", True, began=time, outcome="returned")
            found[key, effect.place].append(told)
    return found


def a_key_identifies_one_message(history: History) -> Iterator[str]:
    """One number, which one call was the first to get, as long as the thread exists."""
    for (key, name), calls in _by_message(history).items():
        told = [call for call in calls if call.found is not None]
        if any(deletes(each) for each in history.of(key)):
            continue
        if len({call.found[0] for call in told}) > 1 or sum(not c.found[1] for c in told) > 1:
            yield f"the key of message {name} in {key.thread} names {len(told)} messages"
        if told and all(call.found[1] for call in told) and len(told) == len(calls):
            yield f"message {name} in {key.thread} was said to be known, and was new"


def messages_keep_their_order(history: History) -> Iterator[str]:
    """Of one topic, those acknowledged before another was sent are applied before it."""
    sent = _by_message(history)
    for key, seen in history.final.items():
        if any(deletes(each) or reverts(each) for each in history.of(key)):
            continue
        latest: dict[str, tuple[int, str]] = {}
        for name in seen.applied:
            calls = sent.get((key, name))
            if not calls or "/" in name:  # a pair has no order, and nodes send at any time
                continue
            topic, began = calls[0].mode, min(call.began for call in calls)
            ended = min((c.ended for c in calls if c.outcome == "returned"), default=1 << 62)
            since, other = latest.get(topic, (0, ""))
            if ended < since:
                yield f"message {name} of {key.thread} was applied after {other}, sent later"
            latest[topic] = max(latest.get(topic, (0, "")), (began, name))


def a_record_stays_with_its_message(history: History) -> Iterator[str]:
    """A task that runs again receives what its record is about, if that was not discarded."""
    for key, seen in history.final.items():
        discarded = {each.op for each in history.of(key, "discard")}
        for pair in seen.mixed:
            if pair.split()[0] not in discarded:
                yield f"a task of {key.thread} has the record of another message: {pair}"


def a_mailbox_agrees_with_the_state(history: History) -> Iterator[str]:
    """A message is unread until it is applied or discarded, and never again."""
    sent = _by_message(history)
    for call in history.calls:
        if call.verb != "mailbox" or call.outcome != "returned":
            continue
        if any(deletes(each) or reverts(each) for each in history.of(call.key)):
            continue
        for look in history.of(call.key, "state"):
            if look.outcome != "returned":
                continue
            applied = set(map(_bare, look.applied))
            if look.ended < call.began and (both := applied & {*call.found}):
                yield f"{call.key.thread} shows {', '.join(sorted(both))} applied, then unread"
            for (key, name), calls in sent.items() if look.began > call.ended else ():
                is_sent = any(one.ended < call.began for one in calls if one.found is not None)
                discards = any(each.op == name for each in history.of(key, "discard"))
                is_seen = discards or name in applied or name in call.found
                if key == call.key and is_sent and not is_seen:
                    yield f"{key.thread} shows message {name} neither unread nor applied"


# ---- recorded calls


def a_recorded_call_is_not_repeated(history: History) -> Iterator[str]:
    """What ``ctx.once`` and ``ctx.transaction`` have returned is not done again."""
    recorded: dict[str, int] = {}
    for effect in history.effects:
        if effect.what == "recorded":
            recorded[effect.place] = effect.time
        elif effect.what == "mail" and not effect.excused:
            since = recorded.get(effect.place)
            if since is not None and not history.was_deleted(effect.place, since):
                yield f"the call at {effect.place} was repeated after it was recorded"
    for place, count in history.paid.items():
        if count > 1:
            yield f"the transaction at {place} was committed {count} times"
    for place in recorded:
        if place in history.paid and history.paid[place] == 0:
            yield f"the transaction at {place} was recorded and not committed"


def a_living_worker_keeps_its_run(history: History) -> Iterator[str]:
    """A long node is not started again, if nothing has happened to its worker."""
    started: set[str] = set()
    for effect in history.effects:
        if effect.what == "lingers":
            if effect.place in started and not effect.excused:
                yield f"the node at {effect.place} was started again, and nothing had happened"
            started.add(effect.place)


# ---- children, and what nodes emit


def a_child_is_started_once(history: History) -> Iterator[str]:
    """A node that runs again finds it, and its end is told as it was; unless it was deleted."""
    known: dict[tuple[str, str], tuple[str, int]] = {}
    places = {key.thread: place for key, place in history.children().items()}
    left = {effect.place for effect in history.effects if effect.what == "left"}
    for effect in history.effects:
        if effect.what in ("spawned", "left", "joined"):
            place, _, said = effect.place.rpartition("=")
            before, since = known.setdefault((effect.what, place), (said, effect.time))
            if said != before and not history.was_deleted(places.get(place, place), since):
                yield f"a node has {effect.what} {place} twice: {before}, {said}"
    for key, place in history.children().items():
        calls = [each for each in history.of(key) if each.key.thread == "*"]
        seen, ended = history.final.get(key), known.get(("joined", key.thread), ("", 0))[0]
        if seen is None:
            if not any(map(deletes, calls)):
                yield f"child {key.thread} of {place} is gone"
            continue
        statuses = {run.status for run in seen.runs}
        if ended and ended not in statuses and not any(map(deletes, calls)):
            yield f"child {key.thread} was joined as {ended}, and is {', '.join(statuses)}"
        if seen.statuses["state"] == "completed" and list(seen.log) != [place]:
            yield f"child {key.thread} has completed, and applied {', '.join(seen.log)}"
        parents = {call.key for call in history.calls if call.op == place.partition("/")[0]}
        stays = f"{place}={key.thread}" in left
        causes = [*calls, *(one for parent in parents for one in history.of(parent) if not stays)]
        if "cancelled" in statuses and not any(map(cancels, causes)):
            yield f"child {key.thread} was cancelled by nobody"


def emitted_values_are_whole(history: History) -> Iterator[str]:
    """Those of an attempt are read in their order from the first on, and stay where they are."""
    known: dict[tuple[ThreadKey, int, int], Any] = {}
    for call in history.calls:
        if call.verb != "emitted" or call.outcome != "returned":
            continue
        if any(map(deletes, history.of(call.key))):
            continue
        due = 0
        for number, (seq, attempt, offset, begins, (place, value)) in enumerate(call.found):
            due = 0 if begins else due + 1
            if (offset, value) != (number, due):
                yield f"{call.key.thread} shows value {value} of {place} at {offset}, not {due}"
            if known.setdefault((call.key, seq, offset), (attempt, value)) != (attempt, value):
                yield f"{call.key.thread} shows another value of {place} at {offset} than before"


# ---- history


def a_history_is_whole(history: History) -> Iterator[str]:
    """It has no gap, begins with the first entry unless somebody pruned, and shows each state as
    it was; what was pruned or deleted does not come back. ``verify`` finds nothing.
    """
    states: dict[str, int] = {}
    known: dict[ThreadKey, dict[str, int]] = defaultdict(dict)
    gone: dict[str, int] = {}
    for call in sorted(history.calls, key=lambda call: call.ended):
        where = f"the history of {call.key.thread}"
        near = [each for each in history.of(call.key) if deletes(each) and _overlap(call, each)]
        is_pruned = call.key.tenant in history.pruned
        if call.verb in PAST and call.outcome == "refused" and not near and not is_pruned:
            yield f"{where} was refused: {call.error}"
        is_over = call.verb == "delete" and call.outcome == "returned"
        if not is_over and (call.verb not in PAST or call.outcome != "returned"):
            continue
        shown: list[Past] = [] if is_over else call.found
        for seq, id, state in shown:
            # A state is read by its seq, which a thread that was deleted and begun again has, too.
            if state is not None and not near and states.setdefault(id, state) != state:
                yield f"{where} shows another state at {seq} than before"
            if gone.get(id, call.began) < call.began:
                yield f"{where} shows {seq} again, which was gone"
        seqs = [seq for seq, *_ in shown if call.mode != "fork"]
        if not near and [one - two for one, two in pairwise(seqs)] != [1] * len(seqs[1:]):
            yield f"{where} has a gap: {seqs}"
        if not near and not is_pruned and seqs and seqs[-1] != 1:
            yield f"{where} ends at {seqs[-1]}"
        ids = {id for _, id, _ in shown}
        for id in ids:
            known[call.key].setdefault(id, call.ended)
        for id, since in known[call.key].items():
            if id not in ids and since < call.began:
                gone.setdefault(id, call.ended)
    for key, seen in history.final.items():
        for text in seen.damage:
            yield f"verify of {key.thread}: {text}"


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
    a_question_is_decided_once,
    config_is_the_submitted_one,
    messages_are_applied_once,
    a_key_identifies_one_message,
    messages_keep_their_order,
    a_record_stays_with_its_message,
    a_mailbox_agrees_with_the_state,
    a_recorded_call_is_not_repeated,
    a_living_worker_keeps_its_run,
    a_child_is_started_once,
    emitted_values_are_whole,
    a_history_is_whole,
    *SHARED_RULES,
    views_agree,
    applied_inputs_stay_applied,
)
