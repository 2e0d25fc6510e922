"""Schedules: each is a durable run that sleeps until the next tick, fires it, and sleeps again.

There is no scheduler. A schedule is the run of a small graph in a thread, ``schedule@@name``. It
sleeps as any run does, so a worker claims it when the *store's* clock says its time has come,
and the fence of its log orders the workers that meet. Its state is the schedule's memory: the
last handled tick. No table is added, and ``ls``, ``history`` and ``cancel`` work with it.

Rules:

- A tick is handled in two committed steps. ``wait`` decides about it: it fires, is skipped, is
  missed, or waits for the run before it. ``fire`` carries that out: it submits the thread
  ``tick@@name@time`` unless that exists. A worker that dies in between is followed by one that does
  the same; one that comes back late finds the thread, and its commits are refused. So each tick is
  decided once and fired once, whatever dies.
- A handled tick is never handled again, also if the threads of firings were deleted: the
  memory does not depend on them. (One case is left: a worker suspended between its look and
  its submission, until the same firing was taken over, ran and was *deleted*.)
- The clocks of workers decide nothing: a sleep ends by the store's clock, and ``wait`` asks the
  store for the time.
- A schedule that is first seen starts now: nothing is caught up. So does one whose expression or
  time zone has changed. With other changes it keeps its place.
- A tick is *missed* if nobody looked at the schedule within ``LATE`` seconds after it: no worker
  was up, or the schedule was paused. ``catch_up`` decides about missed ticks; those caught up run
  one after the other, whatever ``overlap`` says. Ticks waiting for the run before them
  (``overlap="queue"``) are not missed.
- The run of a firing has *ended* if it completed, failed for good, was cancelled or was deleted.
  One asking a person has not.
- A firing that cannot be submitted (its input function raises, say) is tried again every ``RETRY``
  seconds, and later ticks wait for it: nothing is lost silently.
- A worker starting takes over a schedule others serve with another definition, so a
  deploy takes effect at once. A running worker does so only if no living one serves it. The thread
  is migrated, as any thread of a changed graph is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice, takewhile
from time import sleep
from typing import Any, Final, TypedDict

from milecastle.app.application import App
from milecastle.app.runner import Runner
from milecastle.app.runs.calls import Call
from milecastle.app.runs.submission import Handle, require_shared
from milecastle.app.state_graph import StateGraph
from milecastle.app.threads.log import Migration
from milecastle.app.threads.pruning import prune_thread
from milecastle.engine.context import Context
from milecastle.errors import Conflict, InvalidRequest, MilecastleError, Unavailable
from milecastle.fleet.store_clock import StoreClock
from milecastle.graph.schedules import Schedule, ScheduleInfo
from milecastle.model.checkpoint import to_datetime
from milecastle.model.keys import ThreadKey, own_key, own_name
from milecastle.model.manifest import END, START
from milecastle.model.policies import ExecutionConfig, Retry
from milecastle.ports.claims import serves
from milecastle.support.printable import printable

_log = logging.getLogger("milecastle.fleet")

LATE: Final = 60.0
RETRY: Final = 15.0
_SECOND: Final = 1_000_000
_SHORTEST_PAUSE: Final = _SECOND // 20
_LONGEST_PAUSE: Final = 15 * _SECOND
"""The first and the longest time between two looks at a run that is waited for: below ``LATE``."""

_COUNTED: Final = 1000
_KEPT: Final = 500
_PRUNE_EVERY: Final = 100
"""Every so many ticks the log of a schedule is cut to about its last ``_KEPT`` checkpoints."""


class ScheduleState(TypedDict):
    """A schedule's memory; times in microseconds since 1970, by the store's clock.

    ``when`` is the definition its ticks were computed from. All of them up to ``since`` are
    handled. ``seen`` is when it was last checked, ``tick`` the one handled now, ``look_at`` when to
    check ``previous`` again, the thread of the last firing, and ``pause`` how long that is.
    """

    when: str
    since: int
    seen: int
    tick: int
    look_at: int
    pause: int
    previous: str
    verdict: str
    fired: int
    skipped: int
    missed: int


class ScheduleRun:
    def __init__(self, schedule: Schedule, app: App[Any]) -> None:
        self.schedule = schedule
        self.app, runner = app, app.runner
        self._store = store = require_shared(runner.settings.store)
        own = runner.settings.clock
        self.clock = own if isinstance(own, StoreClock) else StoreClock(store, own)
        self.key = own_key(runner.settings.tenant, "schedule", schedule.name)
        self.runner: Runner[ScheduleState] = runner.rebuilt(
            self._graph().compile().graph,
            clock=self.clock,
            interval=1,
            observers=(),
            checkpoint_dir=None,
            workspace=None,
            retry_runs=Retry(attempts=2**31, delay=RETRY, factor=1.0),
            migrations={},
        )

    def _graph(self) -> StateGraph[ScheduleState]:
        graph = StateGraph(ScheduleState, name=own_name("schedule", self.schedule.name))
        graph.add_node("begin", _begin)
        graph.add_node("wait", self.wait, version=self.schedule.definition)
        graph.add_node("fire", self.fire)
        graph.add_edge(START, "begin")
        graph.add_edge("fire", "wait")
        targets = {"waits": "wait", "fires": "fire", "ends": END}  # it never does
        for node in ("begin", "wait"):
            graph.add_conditional_edges(node, _verdict, targets)
        return graph.with_default_config(ExecutionConfig(max_steps=None, cycle_detection=False))

    # ---- its nodes

    def wait(self, state: ScheduleState, ctx: Context) -> dict[str, Any]:
        if state["when"] != self.schedule.described:
            now = self._store.now()
            start = {"since": now, "seen": now, "look_at": 0, "verdict": "waits"}
            return {"when": self.schedule.described, **start}
        tick = self.schedule.after(state["since"])
        wanted = max(tick, state["look_at"]) + 1  # a whole second means a lost worker: was_lost
        ctx.sleep(to_datetime(wanted))
        now = self._store.now()
        if now < wanted:  # the clock of this run was ahead
            sleep(min(1.0, (wanted - now) / _SECOND))
            return {"verdict": "waits"}
        return {
            "look_at": 0,
            "pause": 0,
            "seen": now,
            **self._decide(state, self._key(ctx), tick, now),
        }

    def _decide(self, state: ScheduleState, key: ThreadKey, tick: int, now: int) -> dict[str, Any]:
        is_late = tick > state["seen"] and now - tick > LATE * _SECOND
        if is_late and (since := self._caught_up(tick, now)) >= tick:
            missed = takewhile(lambda each: each <= since, self.schedule.ticks(tick - 1))
            count = sum(1 for _ in islice(missed, _COUNTED))
            return {"since": since, "missed": state["missed"] + count, "verdict": "waits"}
        overlap = "queue" if is_late else self.schedule.overlap
        if overlap == "cancel" or self._has_ended(key.tenant, state["previous"]):
            return {"tick": tick, "seen": tick if is_late else now, "verdict": "fires"}
        if overlap == "skip":
            return {"since": tick, "skipped": state["skipped"] + 1, "verdict": "waits"}
        pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, state["pause"] * 5 // 4))
        was_away = is_late or now - state["seen"] > LATE * _SECOND  # then more may be missed
        return {
            "look_at": now + pause,
            "pause": pause,
            "seen": state["seen"] if was_away else now,
            "verdict": "waits",
        }

    def _caught_up(self, tick: int, now: int) -> int:
        if self.schedule.catch_up == "all":
            return tick - 1
        newest = self.schedule.latest(tick, now)
        fires = self.schedule.catch_up == "last" or now - newest <= LATE * _SECOND
        return newest - 1 if fires else newest

    def fire(self, state: ScheduleState, ctx: Context) -> dict[str, Any]:
        tick, previous, key = state["tick"], state["previous"], self._key(ctx)
        if self.schedule.overlap == "cancel" and previous:
            with suppress(InvalidRequest):  # it was deleted
                self.app.cancel(ThreadKey(key.tenant, previous))
        handle = self.submit(tick, key.tenant)
        fired = state["fired"] + 1
        if fired % _PRUNE_EVERY == 0:
            self._prune(key)
        thread = handle.thread.thread
        return {"since": tick, "previous": thread, "fired": fired, "verdict": "waits"}

    def submit(self, tick: int, tenant: str, thread: str = "") -> Handle[Any]:
        key = ThreadKey(tenant, thread or self.schedule.thread(tick))
        input = self.schedule.input_at(tick)
        config = self.schedule.config
        call = Call(input=input, thread=key, config=config, if_exists="keep", is_own=True)
        return self.app.runner.submit(call, priority=0)

    def _key(self, ctx: Context) -> ThreadKey:
        return ctx.thread or self.key

    def _has_ended(self, tenant: str, thread: str) -> bool:
        info = self._store.thread(ThreadKey(tenant, thread)) if thread else None
        if info is None or info.status in ("completed", "cancelled"):
            return True
        return info.status == "failed" and info.due_at is None

    def _prune(self, key: ThreadKey) -> None:
        threads, _ = self.runner.stored(key)
        with suppress(Conflict):
            prune_thread(threads.store, threads.codec, key, keep_last=_KEPT)

    # ---- its thread

    def register(self, *, insists: bool) -> None:
        """Start the schedule's run, or take it over from workers with another definition.

        ``insists`` does so also if such workers are alive.
        """
        line = self._store.thread(self.key)
        if line is not None and line.graph != self.runner.graph.name:
            raise InvalidRequest(
                f"its thread '{self.key.thread}' is of the graph '{line.graph}': delete that thread"
            )
        if line is None:
            fresh = ScheduleState(
                when="",
                since=0,
                seen=0,
                tick=0,
                look_at=0,
                pause=0,
                previous="",
                verdict="waits",
                fired=0,
                skipped=0,
                missed=0,
            )
            call = Call(input=fresh, thread=self.key, if_exists="keep", is_own=True)
            self.runner.submit(call)
        elif (
            line.lane != self.runner.lane
            and line.status != "cancelled"
            and (insists or not self._is_served(line.lane))
        ):
            self.resume()

    def resume(self) -> None:
        head = self._store.head(self.key)
        if head is not None and head.fingerprint != self.runner.graph.fingerprint:
            self.runner.settings.migrations[head.fingerprint] = Migration(_begin_again)
        self.runner.submit(Call(thread=self.key, if_exists="take_over"))

    def pause(self) -> bool:
        return App(self.runner).cancel(self.key)

    def _is_served(self, lane: str) -> bool:
        alive = (worker for worker in self._store.workers() if not worker.is_gone)
        return any(lane in one.lanes and serves(self._store, one, self.key) for one in alive)

    def info(self) -> ScheduleInfo:
        schedule, line = self.schedule, self._store.thread(self.key)
        graph, thread = self.app.graph.name, self.key.thread
        if line is None:
            return ScheduleInfo(schedule=schedule, graph=graph, thread=thread, status="new")
        if line.graph != self.runner.graph.name:
            return ScheduleInfo(schedule=schedule, graph=graph, thread=thread, status="held")
        state = App(self.runner).state(self.key).state
        begun = state["when"] == schedule.described
        next = schedule.after(state["since"]) if begun and line.status != "cancelled" else None
        held = "held" if line.due_at is None else "failing"
        statuses: dict[str, Any] = {"cancelled": "paused", "failed": held}
        return ScheduleInfo(
            schedule=schedule,
            graph=graph,
            thread=thread,
            status=statuses.get(line.status, "active"),
            next=None if next is None else to_datetime(next),
            last=state["previous"],
            fired=state["fired"],
            skipped=state["skipped"],
            missed=state["missed"],
        )


class Schedules:
    """Some apps' schedules: their state, and backfills.

    Workers use it to keep them running.
    """

    def __init__(self, *apps: App[Any]) -> None:
        self.runs: dict[str, ScheduleRun] = {}
        for app in apps:
            for schedule in app.graph.schedules:
                if schedule.name in self.runs:
                    raise InvalidRequest(
                        f"two graphs have a schedule '{schedule.name}': give one of them a name="
                    )
                self.runs[schedule.name] = ScheduleRun(schedule, app)

    @property
    def runners(self) -> list[Runner[Any]]:
        """Runners for the schedules' own graphs."""
        return [found.runner for found in self.runs.values()]

    def register(self, *, insists: bool = False) -> None:
        """Let each schedule run that does not: off the event loop, when a worker starts and beats.

        ``insists`` takes them over from living workers with other definitions. A failed
        takeover is logged; the other schedules and the worker are not affected.

        Raises:
            Unavailable: the store does not answer, and this ``insists``.
        """
        for found in self.runs.values():
            try:
                found.register(insists=insists)
            except MilecastleError as error:
                if insists and isinstance(error, Unavailable):
                    raise
                _log.warning(
                    "schedule '%s' cannot be looked after: %s",
                    printable(found.schedule.name),
                    printable(str(error)),
                )

    def all(self) -> list[ScheduleInfo]:
        """Each schedule, with its next tick and earlier outcomes."""
        return [found.info() for found in self.runs.values()]

    def backfill(
        self, name: str, start: datetime, end: datetime, *, tenant: str | None = None
    ) -> list[Handle[Any]]:
        """Submit the runs of all ticks from ``start`` up to before ``end``, in their order.

        Only for past ticks. A firing whose thread exists is left as it is (``reused``), so
        it can be repeated. The runs may overlap, whatever the schedule says of its own.
        """
        found = self._find(name)
        ticks = self.past_ticks(name, start, end)
        return [found.submit(tick, tenant or found.key.tenant) for tick in ticks]

    def past_ticks(self, name: str, start: datetime, end: datetime) -> Iterator[int]:
        """The ticks that ``backfill`` submits, in microseconds since 1970."""
        found = self._find(name)
        if start.tzinfo is None or end.tzinfo is None:
            raise InvalidRequest("backfill() takes datetimes with a time zone")
        first, last = _microseconds(start), min(_microseconds(end), found.clock.now() + 1)
        return takewhile(lambda tick: tick < last, found.schedule.ticks(first - 1))

    def run(self, name: str) -> Handle[Any]:
        """Submit a run now, besides those of the ticks; it may overlap with them."""
        found = self._find(name)
        now = found.clock.now()
        return found.submit(now, found.key.tenant, found.schedule.thread_beside(now))

    def pause(self, name: str) -> bool:
        """Stop a schedule until it is resumed; return whether it was running.

        Its ticks are missed meanwhile: ``catch_up`` decides about them.
        """
        return self._find(name).pause()

    def resume(self, name: str) -> None:
        """Continue a paused or held schedule."""
        self._find(name).resume()

    def _find(self, name: str) -> ScheduleRun:
        found = self.runs.get(name)
        if found is None:
            known = ", ".join(f"'{each}'" for each in self.runs) or "none"
            raise InvalidRequest(f"there is no schedule '{name}'; the graph has {known}")
        return found


def _begin(state: ScheduleState) -> dict[str, Any]:
    return {}


def _begin_again(state: dict[str, Any], next: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    return state, ["begin"]


def _verdict(state: ScheduleState) -> str:
    return state["verdict"]


def _microseconds(time: datetime) -> int:
    return round(time.timestamp() * _SECOND)
