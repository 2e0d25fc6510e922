"""The rules of what runs share: long-term memory, buckets, hooks and bursts of messages."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.model.history import Effect, History, deletes, families, over
from tests.model.remembering import NEWEST, STEPS, Shown, own

__all__ = ["SHARED_RULES"]

# ---- memory


class Reading(NamedTuple):
    """What somebody has read of a tenant's memory, and between which moments."""

    tenant: str
    began: int
    ended: int
    under: str
    items: Shown


def _readings(history: History) -> Iterator[Reading]:
    tenants = {call.op: call.key.tenant for call in history.calls}
    for effect in history.effects:
        if effect.what == "recalled":
            place, _, text = effect.place.partition("=")
            began, under, items = json.loads(text)
            yield Reading(tenants[_op(place)], began, effect.time, under, items)
    for call in history.calls:
        if call.verb == "recall" and call.found is not None:
            yield Reading(call.key.tenant, call.began, call.ended, *call.found)
        elif call.verb == "remember" and call.found is not None:
            yield Reading(call.key.tenant, call.began, call.ended, STEPS, call.found)
    for tenant, items in history.memory.items():
        yield Reading(tenant, 1 << 61, 1 << 62, "", items)


def _op(place: str) -> str:
    return place.partition("/")[0]


def memory_belongs_to_its_tenant(history: History) -> Iterator[str]:
    """Nobody sees an item of another tenant, or of other labels than those that were asked for."""
    tenants = {call.op: call.key.tenant for call in history.calls}
    for tenant, _, _, under, items in _readings(history):
        for name, _, places in items:
            if under and name != under and not name.startswith(f"{under}/"):
                yield f"item {name} of {tenant} was found under {under}"
            for place in places:
                if tenants[_op(place)] != tenant or name not in (STEPS, NEWEST, own(_op(place))):
                    yield f"item {name} of {tenant} has what {place} wrote elsewhere"


def memory_counts_committed_steps(history: History) -> Iterator[str]:
    """The version of an item is the number of steps and calls that wrote it; each did so once."""
    sure, perhaps = _written(history)
    for tenant, items in history.memory.items():
        known = {name: (version, places) for name, version, places in items}
        for name in (STEPS, NEWEST):
            version, places = known.pop(name, (0, []))
            committed, maybe = sure[tenant, f"+{name}"], perhaps[tenant, f"+{name}"]
            least, most = len(committed), len(committed) + maybe.total()
            if not least <= version <= most:
                yield f"item {name} of {tenant} has version {version}, and {least} steps wrote it"
            for place in {*places} - committed - maybe.keys():
                yield f"item {name} of {tenant} has what {place} wrote, which was not committed"
            if name == STEPS:
                for place in committed - {*places}:
                    yield f"item {name} of {tenant} has forgotten what {place} wrote"
                for place, times in Counter(places).items():
                    if times > 1 and place not in maybe:
                        yield f"item {name} of {tenant} was written {times} times by {place}"
        for name in {change[1:] for owner, change in sure if owner == tenant} - {STEPS, NEWEST}:
            if not perhaps[tenant, f"+{name}"] and not perhaps[tenant, f"-{name}"]:
                due = _after(sure[tenant, f"+{name}"], sure[tenant, f"-{name}"])
                if known.get(name, (0, [])) != due:
                    yield f"item {name} of {tenant} is {known.get(name)}, and should be {due}"


def _after(puts: set[str], drops: set[str]) -> tuple[int, list[str]]:
    """An item that only the steps of one input wrote, in their order."""
    version, places = 0, list[str]()
    for place in sorted(puts | drops, key=_number):
        version, places = (0, []) if place in drops else (version + 1, [place])
    return version, places


def _number(place: str) -> int:
    return int(place.split("/")[1].partition(".")[0])


def _written(
    history: History,
) -> tuple[dict[tuple[str, str], set[str]], dict[tuple[str, str], Counter[str]]]:
    """Where each item was written by a commit, and where perhaps: its thread was deleted."""
    sure = defaultdict[tuple[str, str], set[str]](set)
    perhaps = defaultdict[tuple[str, str], Counter[str]](Counter)
    for key, seen in history.final.items():
        for change, place in map(str.split, seen.wrote):
            sure[key.tenant, change].add(place)
    tenants = {call.op: call.key.tenant for call in history.calls}
    for call in history.calls:
        if call.verb == "remember" and call.outcome == "returned":
            sure[call.key.tenant, f"+{call.mode}"].add(call.op)
        elif call.verb == "remember" and call.may_count:
            perhaps[call.key.tenant, f"+{call.mode}"][call.op] += 1
    for effect in history.effects:
        if effect.what == "wrote":
            place, _, change = effect.place.partition("=")
            tenant = tenants[_op(place)]
            if tenant in history.pruned or history.was_deleted(place, 0):
                perhaps[tenant, change][place] += 1
    return sure, perhaps


def memory_is_not_older_than_its_writes(history: History) -> Iterator[str]:
    """Whoever reads sees what was acknowledged before, and nothing that nobody has written yet.

    A step is acknowledged when its run is further on.
    """
    passed = defaultdict[str, list[tuple[int, int]]](list)
    for effect in history.effects:
        if effect.what in ("wrote", "recalled", "recorded", "takes"):
            place = effect.place.partition("=")[0]
            passed[_op(place)].append((_number(place), effect.time))
        elif effect.what == "ended":
            passed[effect.place].append((1 << 30, effect.time))
    began, ended = defaultdict[tuple[str, str], list[int]](list), dict[tuple[str, str, str], int]()
    tenants = {call.op: call.key.tenant for call in history.calls}
    for effect in history.effects:
        if effect.what == "wrote":
            place, _, change = effect.place.partition("=")
            tenant = tenants[_op(place)]
            began[tenant, change].append(effect.time)
            later = [time for number, time in passed[_op(place)] if number > _number(place)]
            ended[tenant, change, place] = min(later, default=1 << 62)
    for call in history.calls:
        if call.verb == "remember" and call.may_count:
            began[call.key.tenant, f"+{call.mode}"].append(call.began)
            if call.outcome == "returned":
                ended[call.key.tenant, f"+{call.mode}", call.op] = call.ended
    for tenant, since, until, under, items in _readings(history):
        versions = {name: version for name, version, _ in items}
        for name in (STEPS, NEWEST):
            if name.startswith(under):
                least = sum(
                    (tenant, f"+{name}") == known[:2] and time < since
                    for known, time in ended.items()
                )
                most = sum(time < until for time in began[tenant, f"+{name}"])
                version = versions.get(name, 0)
                if not least <= version <= most:
                    yield f"item {name} of {tenant} was read at version {version}, not {least}"


# ---- buckets


def a_bucket_grants_at_most_its_rate(history: History) -> Iterator[str]:
    """In any time, by the store's clock: its rate for that time, one burst, and what came back."""
    granted = defaultdict[str, dict[str, tuple[int, int]]](dict)
    back = defaultdict[str, dict[str, list[int]]](dict)
    for effect in history.effects:
        if effect.what in ("granted", "settling", "settled"):
            mark, _, text = effect.place.partition("=")
            tenant, amount, time = text.split()
            owner = tenant if tenant in history.buckets else ""
            if effect.what == "granted":
                if granted[owner].setdefault(mark, (int(time), int(amount)))[0] != int(time):
                    yield f"a turn of {tenant} was granted twice"
            elif int(amount) < 0:
                span = back[owner].setdefault(mark, [int(time), 0])
                span[1] = int(time) if effect.what == "settled" else 1 << 62
    for owner, turns in granted.items():
        rate, burst = history.buckets[owner]
        each = sorted(turns.values())
        for first, (since, _) in enumerate(each):
            taken = 0
            for until, units in each[first:]:
                taken += units
                spare = sum(start <= until and end >= since for start, end in back[owner].values())
                if taken * 10**6 > (burst + spare) * 10**6 + (until - since) * rate:
                    yield f"a bucket granted {taken} within {(until - since) / 10**6} seconds"


def a_run_takes_once(history: History) -> Iterator[str]:
    """However often its node runs; unless its thread was deleted, and the input sent again."""
    tenants = {call.op: call.key.tenant for call in history.calls}
    places = Counter(each.place for each in history.effects if each.what == "takes")
    lost = {each.place for each in history.effects if each.what == "takes" and each.excused}
    allowed = Counter[str]()
    for place, times in places.items():
        again = place in lost or history.was_deleted(place, 0)
        allowed[tenants[_op(place)]] += times if again else 1
    marks = {
        (each.place.partition("=")[0], each.place.partition("=")[2].split()[0])
        for each in history.effects
        if each.what == "granted"
    }
    for tenant, count in Counter(tenant for _, tenant in marks).items():
        if count > allowed[tenant]:
            yield f"{tenant} took {count} turns in {allowed[tenant]} places"


# ---- notifications


def every_event_is_delivered(history: History) -> Iterator[str]:
    """Ends for good and questions, each with one id, and nothing that did not happen.

    Not of a deleted thread. Somebody who cancels what sleeps cancels deliveries, too.
    """
    if not history.hooks:
        return
    found = defaultdict[str, set[str]](set)
    for effect in history.effects:
        if effect.what == "delivered":
            id, _, event = effect.place.partition("=")
            found[event].add(id)
    for event, ids in found.items():
        if len(ids) > 1:
            yield f"event {event} was delivered with {len(ids)} ids"
    for key, seen in history.final.items():
        calls = [*history.of(key)]
        if any(map(deletes, calls)):
            continue
        due = {
            f"completed {key.thread} {run.run_id}" for run in seen.runs if run.status == "completed"
        }
        due |= {
            each.place
            for each in history.effects
            if each.what == "due" and each.place.split()[1] == key.thread
        }
        if not any(call.verb == "bulk cancel" for call in calls):
            for event in due - found.keys():
                yield f"event {event} was not delivered"
        statuses, failed = {run.run_id: run.status for run in seen.runs}, Counter[str]()
        first = families(seen.runs)
        for kind, thread, mark in map(str.split, found):
            if thread == key.thread and kind != "question":
                if statuses.get(mark) != kind:
                    yield f"event {kind} {thread} {mark} was delivered, and did not happen"
                failed[first.get(mark, mark)] += kind == "failed"
        again = sum(call.verb in ("retry", "bulk retry", "invoke") for call in calls)
        if max(failed.values(), default=0) > 1 + again:
            yield f"attempts of {key.thread} were delivered that were to be retried"


# ---- bursts of messages


_HARMLESS = ("send", "state", "mailbox", "emitted", "remember", "recall", "limit")
_EARLY = 10_000


def a_burst_wakes_a_thread_when_it_is_over(history: History) -> Iterator[str]:
    """A thread that waits gets nothing before messages with ``quiet`` have ended for so long."""
    asleep: dict[str, list[Effect]] = defaultdict(list)
    known: set[str] = set()
    for effect in history.effects:
        thread = effect.place.partition(" ")[0]
        if effect.what == "waits":
            asleep[thread].append(effect)
        elif effect.what == "got" and effect.place not in known:
            known.add(effect.place)
            due = _quiet_until(history, thread, asleep.pop(thread), effect)
            if effect.wall < due - _EARLY:
                yield f"message {effect.place} was received before its burst was over"


def _quiet_until(history: History, thread: str, waits: Sequence[Effect], got: Effect) -> int:
    """The first moment at which a burst may be over; 0 if anything else may wake the thread."""
    calls = [call for call in history.calls if call.key.thread in (thread, "*") and call.may_count]
    topics = waits[-1].place.split()[1:]
    burst = [
        call
        for call in calls
        if call.verb == "send" and call.mode in topics and waits[0].time < call.ended
        if call.began < got.time and not (call.found and call.found[1])
    ]
    before = [wait for wait in waits if burst and wait.time < burst[0].began]
    rested = len(before) == len(waits) - 1 > 0 and burst[0].status == "sleeping"
    if not rested or not all(call.quiet for call in burst):
        return 0
    since = before[-1].time
    others = [call for call in calls if call.verb not in _HARMLESS and call.began < got.time]
    if any(over(call) > since for call in others):
        return 0
    due = 1 << 62
    for call in burst:
        bounds = [call.wall + round(call.quiet * 1_000_000)]
        if call.at_most is not None:
            bounds.append(burst[0].wall + round(call.at_most * 1_000_000))
        is_in_time = call.outcome == "returned" and call.until < due
        due = min(bounds) if is_in_time else min(due, *bounds)
    return due


SHARED_RULES: Sequence[Callable[[History], Iterator[str]]] = (
    memory_belongs_to_its_tenant,
    memory_counts_committed_steps,
    memory_is_not_older_than_its_writes,
    a_bucket_grants_at_most_its_rate,
    a_run_takes_once,
    every_event_is_delivered,
    a_burst_wakes_a_thread_when_it_is_over,
)
