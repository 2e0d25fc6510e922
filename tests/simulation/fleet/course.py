"""The course of one simulation of a fleet: workers, faults and people on one timeline.

One seed decides everything. While there are faults, workers die, are stopped and continue, are cut
off or drained, their clocks jump, nodes block their loops, calls of the store fail, and the bell
is lost, late or doubled. Then all calms down, and every run must come to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from milecastle.app.application import App
from milecastle.engine.tasks import outcome_row
from milecastle.errors import StoreError
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from tests.simulation.fleet.processes import Process
from tests.simulation.fleet.timeline import SECOND, START, Timeline
from tests.simulation.fleet.virtual_loop import Dead, current_actor
from tests.simulation.ledger import Ledger
from tests.simulation.random_graphs import World
from tests.simulation.random_shapes import Shape, Tally
from tests.simulation.shaky_store import ShakyStore

__all__ = ["SILENT", "Course", "Start"]

SILENT = 6.0
_WRONG = 30.0
"""By how many seconds clocks are wrong at most."""


_LATELY = 5 * SECOND
"""For how long two workers may run a thread that somebody wrote to after one had claimed it."""


class Start:
    """A node that was started: by whom, when, and whether it has raised."""

    __slots__ = ("has_raised", "process", "time")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.time = process.now
        self.has_raised = False


class Course:
    """The state of one simulation."""

    def __init__(self, shape: Shape, app: App[Tally], world: World, random: Random) -> None:
        child = shape.child or shape
        self.random = random
        self.timeline = Timeline(random)
        self.app = app
        self.claims = MemoryStore(now=lambda: self.timeline.now)
        self.store = ShakyStore()
        self.store.reset(Random(0), 0.0, self.claims)
        self.wrong: list[str] = self.store.wrong
        self.ledger = Ledger(self.store, (shape.interval, child.interval), self.wrong)
        self.happened: Counter[str] = Counter()
        self.listeners: dict[Process, Callable[[], None]] = {}
        self.faulty = random.choice((0.0, 0.01, 0.04))
        self.deadly = random.choice((0.0, 0.001, 0.004))
        self.troubles = True
        self.wakes_later = False
        self.beats_on_loop = False
        self.effects = 0
        self.trace: list[str] | None = None
        self.size = random.randint(1, 3)
        self.workers: list[Process] = []
        self.touched: dict[str, int] = {}
        self._ids = self._started = 0
        self._starts: dict[tuple[ThreadKey, int, str], Start] = {}
        self._running: dict[Process, Worker] = {}
        self._options = WorkerOptions(
            concurrency=random.choice((1, 3, 20)),
            poll=random.choice((1.0, 3.0)),
            heartbeat=SILENT / 3,
            silent_after=SILENT,
            grace=3.0,
            losses=random.choice((3, 5)),
        )
        world.on_doing = self._doing

    def tell(self, process: Process, *what: object) -> None:
        """Note what happens, for whoever looks for the cause of a violation."""
        if self.trace is not None:
            at = f"{(self.timeline.now - START) / SECOND:10.4f}"
            self.trace.append(f"{at} {process.name} {' '.join(map(str, what))}")

    def new_id(self) -> str:
        """A UUIDv7 that is new in this simulation."""
        self._ids += 1
        text = f"{(self.timeline.now // 1000) << 16 | 0x7000:016x}{1 << 63 | self._ids:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # ---- workers

    def start_worker(self) -> None:
        """A process with a worker; when it is gone, another one takes its place."""
        self._started += 1
        process = Process(self, f"worker {self._started}")
        self.workers.append(process)
        runner = self.app.runner.rebuilt(
            store=process.connection, clock=process.clock, observers=(_Watch(self, process),)
        )
        worker = Worker([App(runner)], self._options)
        self._running[process] = worker
        task = process.loop.create_task(worker.run())
        task.add_done_callback(lambda done: self._ended(process, done))

    def _ended(self, process: Process, task: Any) -> None:
        if process in self.workers:
            self.workers.remove(process)
            del self._running[process]
            self.timeline.after(self.random.uniform(0.0, 3.0), self._replace)
        if process.is_dead:
            return
        self.listeners.pop(process, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError):
            self.wrong.append(f"a worker ended with {error!r}")
        self.wrong += process.loop.errors

    def _replace(self) -> None:
        if self.size > len(self.workers):
            self.start_worker()

    def drain(self, process: Process) -> None:
        """SIGTERM."""
        process.disturb()
        process.disturbed_at = 1 << 62  # its runs move on, whatever it does
        self.happened["drains"] += 1
        process.loop.call_soon(self._running[process].stop)

    def disturb(self) -> None:
        """Something bad happens to a worker, and soon to another one."""
        random = self.random
        if not self.troubles:
            return
        if self.workers:
            process = random.choice(self.workers)
            kind = random.choice(("crashes", "stops", "stops", "cuts", "drains", "jumps"))
            self.tell(process, "FAULT", kind)
            self.happened[kind] += kind != "crashes" and kind != "drains"
            if kind == "crashes":
                process.die()
            elif kind == "stops":
                process.stop(random.uniform(0.5, 3 * SILENT))
            elif kind == "cuts":
                process.cut_off(random.uniform(0.5, 2 * SILENT))
            elif kind == "drains":
                self.drain(process)
            else:
                process.clock.ahead = random.uniform(-_WRONG, _WRONG)
        self.timeline.after(random.uniform(0.5, 8.0), self.disturb)

    def calm_down(self) -> None:
        """No more faults; those that have begun end when they end."""
        self.troubles = False
        self.faulty = self.deadly = 0.0

    def ring(self) -> None:
        """Tell the workers that a thread is due: perhaps, perhaps twice, perhaps late."""
        for process, heard in list(self.listeners.items()):
            chance = self.random.random() if self.troubles else 0.5
            if chance < 0.2:
                self.happened["lost hints"] += 1
                continue
            late = self.random.uniform(0.0, 4.0) if chance > 0.8 else self.timeline.delay()
            for _ in range(2 if 0.2 < chance < 0.35 else 1):
                self.timeline.after(late, heard, process)

    # ---- what nodes do

    def committed(self, batch: Batch) -> None:
        """A batch is in the log: tasks of a step that was left waiting will start again."""
        if any(entry.source in ("interrupt", "sleep") for entry in batch.entries):
            for start in [start for start in self._starts if start[0] == batch.key]:
                del self._starts[start]

    def starting(self, process: Process, event: Event) -> Start:
        """A node starts. Not one that another worker runs to whom nothing has happened."""
        key, step, task = event.key, event.step, event.task
        assert key is not None
        assert task is not None
        self.happened["nodes"] += 1
        place = (key, step, task)
        self.tell(process, "node", key.thread, step, task)
        earlier, start = self._starts.get(place), Start(process)
        if earlier is not None and not earlier.has_raised:
            self.happened["repeated"] += 1
            touched = self.touched.get(key.thread.partition("\x1f")[0], 0)
            excused = earlier.process.is_excused(earlier.time) or process.is_excused(process.now)
            if not excused and touched < earlier.time - _LATELY:
                self.wrong.append(f"a node was repeated, and nothing had happened ({task})")
        self._starts[place] = start
        self.store.writer = process.writer
        is_durable = self.ledger.is_durable((key, outcome_row(step, task)))
        knows = not self.store.is_fenced(key) and self.ledger.saves_every_step(key)
        if is_durable and knows:
            self.wrong.append(f"a finished task ran again ({task})")
        self.store.writer = None
        if self.troubles and process.loop.is_at_work and self.random.random() < 0.3:
            self.happened["blocked"] += 1
            process.loop.block(self.random.uniform(0.0, 2 * SILENT))
        return start

    def _doing(self, ctx: Any, name: str) -> None:
        process = current_actor()
        self.store.writer = process.writer
        self.ledger.doing(ctx, name)
        self.store.writer = None


class _Watch:
    """Sees the nodes of one process."""

    def __init__(self, course: Course, process: Process) -> None:
        self._course = course
        self._process = process

    def on_event(self, event: Event) -> None:
        """Only tasks are of interest."""

    def wrap_task(self, event: Event) -> _Around:
        return _Around(self._course, self._process, event)


class _Around:
    def __init__(self, course: Course, process: Process, event: Event) -> None:
        self._course = course
        self._process = process
        self._event = event

    def __enter__(self) -> None:
        self._start = self._course.starting(self._process, self._event)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._start.has_raised = error is not None and not isinstance(error, Dead)
