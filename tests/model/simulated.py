"""Histories on the simulator: real workers and callers on virtual time, and every fault at will.

``run(seed)`` makes one history and judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

from milecastle import App
from milecastle.app.runs.ownership import Sighting
from milecastle.engine.emissions import emission_offset
from milecastle.errors import MilecastleError
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import name_of
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.limits import ClaimPlace, Limit, Meter, Rooms, Scope, graph_of
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import SharedObjects, offload
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import with_store
from tests.model import callers
from tests.model.buckets import NotedBuckets
from tests.model.callers import Plan, note_found, perform
from tests.model.graphs import GRAPHS, STAGE, State, app_of
from tests.model.history import Call, History, reverts
from tests.model.hooks import note_told, receiving, undelivered
from tests.model.people import ROLLUP_AFTER, People
from tests.model.specification import judge
from tests.model.views import look, parent_of, remembered, served, unended
from tests.simulation.fleet.course import SILENT, Course
from tests.simulation.fleet.processes import Connection, Process
from tests.simulation.fleet.simulate import surroundings
from tests.simulation.fleet.timeline import SECOND, Timeline
from tests.simulation.fleet.virtual_loop import Dead, current_actor, is_held_up

__all__ = ["ModelCourse", "report", "run", "shrunk"]

_ELSEWHERE = Sighting("unknown", "a process of another machine")
PERIOD = 3
_AT_ONCE = 2
"""How many calls are under way at once, besides those that follow from others."""
_PATIENCE = 400
"""For how many virtual seconds after the last fault inputs may take to be applied."""


@lru_cache(maxsize=24)
def _apps(
    interval: int,
    *,
    lingers: bool = False,
    ticks: bool = False,
    mails: bool = False,
    hooks: bool = False,
) -> dict[str, App[State]]:
    made = partial(app_of, store=MemoryStore(), interval=interval, mails=mails, hooks=hooks)
    found = {name: made(name, lingers=lingers) for name in GRAPHS}
    if ticks:
        found["one"] = made("one", period=timedelta(seconds=PERIOD))
    return found


class Watched:
    """The one store, and what is checked each time that it is called."""

    writer: Any = None

    def __init__(
        self,
        store: Any,
        history: History,
        now: Callable[[], int],
        read_emitted: Callable[[ThreadKey], None],
    ) -> None:
        self._store = store
        self._history = history
        self._wrong = history.wrong
        self._now = now
        self._read_emitted = read_emitted
        self._claims: list[tuple[int, ClaimPlace]] = []
        self._set: dict[Scope, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set_limit(self, limit: Limit) -> None:
        """A rate holds from now on."""
        self._set[Meter(limit).scope] = self._now()
        self._store.set_limit(limit)

    def commit(self, batch: Batch) -> None:
        """Note which runs are no longer waiting, and read what was emitted as each reader may."""
        self._store.commit(batch)
        if any(emission_offset(row.task) is not None for row in batch.results):
            self._read_emitted(batch.key)
        for run in batch.runs:
            if run.status == "running":
                self._history.note("taken", run.run_id)

    def claim(self, *given: Any, **named: Any) -> Sequence[ThreadInfo]:
        """Claim, and compare what has a worker then with the limits."""
        limits = self._store.limits()
        before = self._running() if limits else ()
        found: Sequence[ThreadInfo] = self._store.claim(*given, **named)
        if limits:
            after = self._running()
            now = self._now()
            self._claims += [(now, _place(one)) for one in found]
            for limit in limits:
                self._check(limit, _within(limit, before), _within(limit, after), now)
        return found

    @property
    def buckets(self) -> NotedBuckets:
        return NotedBuckets(self._store.buckets, self._store.now, self._history.note)

    def _running(self) -> list[ClaimPlace]:
        held = [key for worker in self._store.workers() for key in self._store.claimed(worker.id)]
        return [_place(line) for line in map(self._store.thread, held) if line is not None]

    def _check(self, limit: Limit, before: int, after: int, now: int) -> None:
        if after <= before:
            return
        if limit.paused or (limit.concurrency is not None and after > limit.concurrency):
            self._wrong.append(f"a limit was exceeded: {after} run under {limit}")
        if limit.rate is not None:
            since = max(now - limit.microseconds, self._set[Meter(limit).scope])
            lately = [place for time, place in self._claims if time > since]
            if _within(limit, lately) > 2 * limit.rate:
                self._wrong.append(f"a rate was exceeded: {limit}")


def _place(line: ThreadInfo) -> ClaimPlace:
    return line.lane, line.key.tenant, line.limit_key


def _within(limit: Limit, running: Sequence[ClaimPlace]) -> int:
    """How many a limit covers; by key, of the value with most."""
    keys = Counter(
        limit_key if limit.key else ""
        for lane, tenant, limit_key in running
        if limit.graph in ("", graph_of(lane)) and limit.tenant in ("", tenant)
        if limit.key in ("", name_of(limit_key))
    )
    return max(keys.values(), default=0)


class _Ledger:
    def committed(self, batch: Batch) -> None:
        """The simulator's own checks are not needed here."""


class Part:
    """What a process sees of a part of the store: each call passes its connection."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return partial(self._connection.call, f"{self._name}.{name}")


class WholeConnection(Connection):
    """A connection to a store with all its parts."""

    @property
    def mailbox(self) -> Any:
        return Part(self, "mailbox")

    @property
    def tags(self) -> Any:
        return Part(self, "tags")

    @property
    def memory(self) -> Any:
        return Part(self, "memory")

    @property
    def buckets(self) -> Any:
        return Part(self, "buckets")

    def _perform(self, name: str, given: Any, named: Any) -> Any:
        part, _, verb = name.partition(".")
        if not verb:
            return super()._perform(name, given, named)
        found = getattr(getattr(self.process.course.claims, part), verb)(*given, **named)
        if verb == "send":
            self.process.course.ring()
        return found


class Mailing(Process):
    connects = WholeConnection

    def __init__(self, course: Course, name: str) -> None:
        super().__init__(course, name)
        whole = cast("ModelCourse", course).with_objects(self.connection)
        if whole is not self.connection:
            own: Any = self.connection
            own.rollup_after = ROLLUP_AFTER
            whole.process = self
            self.connection = whole


class Working(Mailing):
    """A process with a worker."""

    def __init__(self, course: Course, name: str) -> None:
        super().__init__(course, name)
        self.began = self.now


def _options(random: Random, concurrency: int, silent: float = SILENT) -> WorkerOptions:
    return WorkerOptions(
        concurrency=concurrency,
        poll=random.choice((0.5, 2.0)),
        heartbeat=silent / 3,
        silent_after=silent,
        grace=3.0,
        losses=50,
    )


class ModelCourse(Course):
    """A course whose people and promises are those of the model; faults are the simulator's."""

    def __init__(self, seed: int, folder: str = "") -> None:
        self.random = random = Random(seed)
        self.is_served = seed % 50 == 0
        self.timeline = Timeline(random)
        self.history = History(clock=lambda: self.timeline.now)
        self.interval = random.choice((1, 1, 2, 3))
        self.wrong = self.history.wrong
        self.happened: Counter[str] = Counter()
        self.back = 0
        self.folder = folder
        self.ledger = cast("Any", _Ledger())
        self.listeners = {}
        is_calm = random.random() < 0.3
        self.faulty = 0.0 if is_calm else random.choice((0.0, 0.01, 0.04, 0.1))
        self.deadly = 0.0 if is_calm else random.choice((0.0, 0.001, 0.004))
        self.is_calm = is_calm
        self.troubles = True
        self.wakes_later = self.beats_on_loop = False
        self.effects = 0
        self.trace: list[str] | None = None
        self.size = random.randint(1, 3)
        self.workers: list[Process] = []
        self.touched = {}
        self._ids = self._started = 0
        self._running = {}
        self._options = _options(random, random.choice((1, 3, 20)))
        self.people = People(random, self.history)
        shape = {"mails": self.people.mails, "hooks": self.people.hooks}
        self.apps = _apps(self.interval, **shape)
        self.length = (3, 8) if self.people.hurry else (5, 15)
        if self.people.archives:
            self.length = (8, 15)
        self.ticks = random.random() < 0.08 and not self.people.hooks
        if self.ticks:
            self.apps = _apps(self.interval, ticks=True, **shape)
        elif random.random() < 0.08:
            self._crowd(random)
        self.failed: Counter[str] = Counter()
        self._idle_since: int | None = None
        self._left = 1 << 30
        self._under_way = 0
        self.deliveries: list[str] = []
        self.recorded: dict[str, tuple[Any, int]] = {}
        with self.clocks():
            self.opened = self._open(folder)
        for bucket in self.people.buckets:
            self.opened.buckets.put(bucket)
            self.history.buckets[bucket.tenant] = bucket.rate, bucket.burst
        watched: Any = Watched(
            self.opened, self.history, lambda: self.timeline.now, self._read_emitted
        )
        self.claims = self.store = watched
        self.objects = SharedObjects("memory:///", threshold=500)
        whole = self.with_objects(watched)
        self.direct = {name: with_store(app, whole) for name, app in self.apps.items()}

    def with_objects(self, store: Any) -> Any:
        """A store as a process sees it: in a share of the histories with object storage."""
        return offload(store, self.objects) if self.people.archives else store

    def _read_emitted(self, key: ThreadKey) -> None:
        line = self.opened.thread(key)
        if line is not None and line.graph in self.direct:
            call = self.history.begin(Call(verb="emitted", key=key))
            note_found(call, self.direct[line.graph].emitted(key))
            self.history.end(call, "returned")

    @contextmanager
    def clocks(self) -> Generator[None, None, None]:
        """Virtual time for the store; no process of a crowd knows the others' processes."""
        with ExitStack() as patches:
            for name in ("time_ns", "monotonic_ns"):
                where = f"milecastle.ports.claims.{name}"
                patches.enter_context(patch(where, getattr(self, name), create=True))
            patches.enter_context(patch("milecastle.fleet.schedules.sleep"))
            patches.enter_context(patch("milecastle.drivers.chunks.Timer"))  # chunks wait for more
            patches.enter_context(patch("milecastle.engine.context.sleep", self._pass))
            if self.people.hooks:
                patches.enter_context(receiving(self))
            if "linger" in self.people.acts:
                found = "milecastle.app.runs.ownership.find_owner"
                patches.enter_context(patch(found, return_value=_ELSEWHERE))
            yield

    def _crowd(self, random: Random) -> None:
        """More long runs than a worker has room for; it may be silent for long."""
        self.size, self.is_calm = 1, True
        self.faulty = self.deadly = 0.0
        self._options = _options(random, random.choice((5, 8)), random.choice((SILENT, 60.0)))
        self.people.crowd(12)
        self.length = (20, 45)
        self.apps = _apps(self.interval, lingers=True)

    def _open(self, folder: str) -> Any:
        """The store: in memory, or with a folder in a file of SQLite.

        In some histories its clock is that of a machine, which is set back by an hour.
        """
        own: Any = {}
        if self.random.random() < 0.9:
            own = {"now": lambda: self.timeline.now}
        else:
            self.timeline.after(self.random.uniform(1.0, 8.0), self._set_back)
        if not folder:
            return MemoryStore(**own)
        path = Path(folder) / f"{self.random.random()}.db"
        return SqliteStore(path, synchronous="normal", **own)

    def _set_back(self) -> None:
        self.happened["clock set back"] += 1
        self.back = 3600 * SECOND

    def time_ns(self) -> int:
        """The clock of the machine with the store."""
        return (self.timeline.now - self.back) * 1000

    def monotonic_ns(self) -> int:
        return self.timeline.now * 1000

    def _pass(self, seconds: float) -> None:
        """A node waits here for its turn, in a thread of its own."""
        self.timeline.pass_time(self.timeline.now + round(seconds * SECOND))

    def start_worker(self) -> None:
        self._started += 1
        process = Working(self, f"worker {self._started}")
        self.workers.append(process)
        apps = [
            App(app.runner.rebuilt(store=process.connection, clock=process.clock))
            for app in self.apps.values()
        ]
        worker = Worker(apps, self._options)
        self._running[process] = worker
        task = process.loop.create_task(worker.run())
        task.add_done_callback(lambda done: self._ended(process, done))

    def committed(self, batch: Batch) -> None:
        """Nothing is to be noted."""

    # ---- what nodes do

    def note(self, what: str, place: str) -> None:
        process, excused = current_actor(), False
        if what in ("mail", "lingers") and place in self.recorded:
            earlier, since = self.recorded[place]
            excused = earlier is None or earlier.is_excused(since)
            if what == "mail":  # what is recorded every few steps may be lost with its worker
                excused = self.interval > 1 and (excused or self._was_touched(place))
                excused = excused or self._is_stale(process, place)
        if what == "takes":  # so may its turn
            excused = self.interval > 1
        if what in ("recorded", "lingers"):
            self.recorded[place] = (process, self.timeline.now)
        self.history.note(what, place, excused=excused)

    def _is_stale(self, process: Any, place: str) -> bool:
        """Whether a worker continues with a thread that is no longer its own, unknowingly."""
        op, worker = place.partition("/")[0], self._running.get(process)
        lines = [self.claims.thread(call.key) for call in self.history.calls if call.op == op]
        return worker is None or not any(line and line.worker == worker.id for line in lines)

    def _was_touched(self, place: str) -> bool:
        """Whether a call may have taken the run from its worker."""
        op = place.partition("/")[0]
        keys = {call.key for call in self.history.calls if call.op == op}
        verbs = ("cancel", "retry", "invoke", "bulk cancel", "bulk retry")
        return any(True for key in keys for _ in self.history.of(key, *verbs))

    def now(self) -> int:
        return self.history.tick()

    def fails(self, place: str, times: int) -> bool:
        self.failed[place] += 1
        return self.failed[place] <= times

    def pay(self, connection: Any, place: str) -> None:
        raise NotImplementedError

    # ---- what people do

    def act(self) -> None:
        """Somebody makes a call, and somebody else another one later."""
        if not self.troubles or self._left <= 0:
            return
        self._left -= 1
        hurries = self.random.random() < self.people.hurry
        pause = self.random.uniform(0.0, 0.03 if hurries else self.people.pace)
        self.timeline.after(pause, self.act)
        if self._under_way < _AT_ONCE:  # a call holds up those in which it happens
            self._under_way += 1
            plan = self.people.choose()
            if beside := self.people.beside(plan.call):
                self.timeline.after(self.random.uniform(0.0, 0.05), partial(self.make, beside))
            try:
                self.make(plan)
            finally:
                self._under_way -= 1

    def stop_after(self, calls: int) -> None:
        """Make the history shorter: people make so many calls, besides those that follow."""
        self._left = calls

    def make(self, plan: Plan) -> None:
        """Make a call in a process of its own, and what follows from it."""
        self.happened[plan.call.verb] += 1
        process = Mailing(self, "caller")
        app = self.apps[self.people.graph_of(plan.call.key)]
        own = with_store(app, process.connection, clock=process.clock)
        try:
            found = perform(self.history, plan, own)
        except Dead:
            self.history.end(plan.call, "unknown")
            self.happened["dead callers"] += 1
            found = None
        self.people.learn(plan)
        if found is not None and plan.call.verb in ("state", "mailbox"):
            reaction = self.people.react(plan.call, found)
            if reaction is not None:
                self.make(reaction)

    # ---- progress

    def watch(self) -> None:
        """Look twice a second whether something is due that a living worker has room for."""
        self.timeline.after(0.5, self.watch)
        held_up = self._under_way > 0  # a call may have begun inside of a worker's
        if held_up or not (self._is_due() and any(map(self._has_room, self.workers))):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self.timeline.now
        elif self.timeline.now - self._idle_since > (3.0 + 3 * (self._options.poll or 0)) * SECOND:
            self.wrong.append("progress: threads are due and allowed, and a living worker has room")

    def _is_due(self) -> bool:
        limits, depths = self.claims.limits(), self.claims.depths()
        if any(limit.rate is not None for limit in limits):
            return False
        if any(limit.key for limit in limits):
            return False  # depths say nothing of keys; what starves is stuck at the end
        running = {(depth.lane, depth.tenant, ""): depth.running for depth in depths}
        rooms = Rooms([Meter(limit) for limit in limits], running)
        return any(depth.due and rooms.is_open((depth.lane, depth.tenant, "")) for depth in depths)

    def _has_room(self, process: Any) -> bool:
        """Whether a worker should claim: nothing has happened to it for a while."""
        worker, lately = self._running[process], self.timeline.now - 10 * SECOND
        fine = not process.is_dead and process.disturbed_at < lately and not worker.is_draining
        free = worker.running < self._options.concurrency
        able = process.began < lately and process.loop.blocked_until < lately
        return fine and free and able and not is_held_up(process)

    # ---- the end

    def finish(self) -> None:
        """No more faults: everything that was acknowledged must be applied by itself.

        People only answer, and retry what failed for good.
        """
        self.calm_down()
        people = self.people
        for graph, tenant, name in list(people.limits):  # a call that took one back may be lost
            self.make(callers.limit(Limit(graph=graph, tenant=tenant, key=name)))
        if self._settle():
            for key in people.threads:
                self._ask_again(key)
            self._settle()
        keys = (*people.threads, *self.history.children())
        for plan in people.last_looks(keys):
            self.make(plan)
        for key in keys:
            self._look_at_end(key)
        if people.remembers:
            self.history.memory = remembered(self.direct[GRAPHS[0]], people.tenants)
        if self.ticks:
            self._check_ticks()
        if self.is_served and self.history.final:
            opened = self.with_objects(self.opened)
            apps = [with_store(app, opened) for app in self.direct.values()]
            served(apps, self.history.final)

    def _check_ticks(self) -> None:
        """Every tick of the schedule was fired, in a thread of its own, and applied once."""
        logs: list[list[str]] = []
        fired, times, late = Counter[str](), list[int](), list[int]()
        for _ in range(10):  # a worker may have to catch up with many, one at a time
            self.timeline.run(self.timeline.now + 10 * PERIOD * SECOND)
            logs = self._ticked()
            fired = Counter(op for log in logs for op in log)
            times = sorted(int(op.split()[1]) for op in fired)
            late.append(self.opened.now() // SECOND - max(times, default=0))
            if late[-1] <= 10 * PERIOD:
                break
        else:
            if late[-1] - late[0] > 50 * PERIOD:  # a busy worker just keeps pace
                self.wrong.append(f"the schedule stopped: {len(times)} fired")
        if any(count > 1 for count in fired.values()) or any(len(log) != 1 for log in logs):
            self.wrong.append("a tick of the schedule was fired twice")
        if holes := [b - a for a, b in pairwise(times) if b - a != PERIOD]:
            self.wrong.append(f"the schedule left out ticks: {len(times)} fired, holes {holes}")

    def _ticked(self) -> list[list[str]]:
        app = self.direct["one"]
        return [
            app.state(info.key).state.get("log", [])
            for info in app.threads(tenant=app.tenant)
            if info.graph == "one" and info.status == "completed"
        ]

    def _settle(self) -> bool:
        """Wait until nothing is left to run."""
        timeline, left = self.timeline, [""]
        for second in range(_PATIENCE):
            timeline.run(timeline.now + SECOND)
            if self.people.unsure and self.random.random() < 0.5:
                self.make(self.people.unsure.pop(0))
            if self.people.hooks:
                self.deliveries = undelivered(self.opened, self.people.tenants, self._retry)
            left = [text for key in self.people.threads if (text := self._unfinished(key))]
            left += [text for key in self.history.children() if (text := self._unended(key))]
            left += self.deliveries
            if not left and second > 2 and not self.people.unsure:
                return True
        self.wrong += [f"a thread is stuck: {text}" for text in left]
        return False

    def _unfinished(self, key: ThreadKey) -> str:
        """Care for a thread; why it is not finished."""
        info = self.claims.thread(key)
        if info is None:
            return ""
        waiting = len(waiting_inputs(self.claims, key))
        unread = self.opened.mailbox.unread(key) if info.waiting_topics else ()
        is_told = self._is_told(info)
        plan = self.people.care(info, waiting, self.timeline.now, unread) if is_told else None
        if plan is not None:
            self.make(plan)
        is_over = info.status in ("completed", "cancelled") and not waiting
        if is_over and info.due_at is None and not info.worker:
            return ""
        return (
            f"{key.thread} {info.status}, due {info.due_at}, {waiting} wait, lane {info.lane[:6]}"
        )

    def _unended(self, key: ThreadKey) -> str:
        """Care for a child; why it has not ended, or has not told its parent."""
        info = self.claims.thread(key)
        if info is None:
            return ""
        plan = self.people.care_for_child(info, parent_of(self.claims, info))
        if plan is not None:
            self.make(plan)
        return unended(info)

    def _retry(self, key: ThreadKey) -> None:
        self.make(callers.simple("retry", key))

    def _is_told(self, info: ThreadInfo) -> bool:
        if not self.people.hooks:
            return True
        # again: the call before this one may have let another thread ask
        if undelivered(self.opened, self.people.tenants, self._retry):
            return False
        return note_told(self.history, self.direct[self.people.graph_of(info.key)], info)

    def _ask_again(self, key: ThreadKey) -> None:
        """Every key again, in a mode: it names the same run, and nothing runs."""
        for op in self.people.to_ask_again(key):
            self.make(callers.submit(op, self.random.choice(("again queue", "again reject"))))

    def _look_at_end(self, key: ThreadKey) -> None:
        if self.claims.thread(key) is None:
            return
        app = self.direct[self.people.graph_of(key)]
        try:
            reverted = any(map(reverts, self.history.of(key)))
            self.history.final[key] = look(app, self.claims, key, reverted=reverted)
        except MilecastleError as error:
            self.wrong.append(f"{key.thread} cannot be read: {type(error).__name__}: {error}")


def run(
    seed: int, prepare: Callable[[ModelCourse], None] | None = None, folder: str = ""
) -> ModelCourse:
    """Make the history of a seed; ``wrong`` has what is wrong with it."""
    course = ModelCourse(seed, folder)
    if prepare is not None:
        prepare(course)
    random, timeline = course.random, course.timeline
    STAGE.world = course
    with surroundings(course), course.clocks():
        try:
            for _ in range(course.size):
                timeline.after(random.uniform(0.0, 2.0), course.start_worker)
            timeline.after(0.0, course.act)
            timeline.after(0.0, course.watch)
            if not course.is_calm:
                timeline.after(random.uniform(0.0, 6.0), course.disturb)
            until = timeline.now + random.randint(*course.length) * SECOND
            timeline.at(until, partial(course.stop_after, 0))
            timeline.run(until)
            course.finish()
        finally:
            for process in course.workers[:]:
                process.die()
            course.opened.close()
    course.wrong[:] = judge(course.history)
    return course


def shrunk(seed: int, folder: str = "") -> ModelCourse:
    """The shortest beginning of a history that breaks a rule by itself."""
    course = run(seed, folder=folder)
    for most in range(1, len(course.history.calls)):
        shorter = run(seed, partial(ModelCourse.stop_after, calls=most), folder)
        if shorter.wrong:
            return shorter
    return course


def report(course: ModelCourse, seed: int) -> str:
    """What is wrong with a history, and its calls."""
    return "\n".join([f"seed {seed}:", *course.wrong, *map(str, course.history.calls)])
