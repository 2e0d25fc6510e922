"""A worker process, honest or with one part broken on purpose: the controls of the chaos test.

Run as ``python -m tests.process.fleet_worker CHEAT MODULE:ATTRIBUTE OPTIONS``. Whatever it is, the
hints that it hears are lost, late and doubled, and SIGUSR1 sets its clock.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread, Timer
from typing import Any, cast

from milecastle import MilecastleError, ThreadKey
from milecastle.app.clock import SystemClock
from milecastle.app.runs.calls import Call
from milecastle.cli.main import cli
from milecastle.engine import journal
from milecastle.engine.assignment import Assignment
from milecastle.engine.received import Received
from milecastle.engine.task_port import RunTaskPort
from milecastle.fleet import claimer, heartbeat, run_segments, worker
from milecastle.fleet.schedules import ScheduleRun, Schedules
from milecastle.model.limit_key import NO_KEY
from milecastle.model.message import Message
from milecastle.model.notices import Notice, event_of
from milecastle.model.run import ThreadInfo
from milecastle.model.task import RunTask
from milecastle.ports.buckets import BucketLevel, BucketTake, Turn
from milecastle.ports.limits import ClaimPlace, Rooms
from milecastle.records import Handle
from milecastle.stores.sqlite.buckets import SqliteBuckets
from tests.broken_stores.buckets import WindowByTheMinute


def without_reconciler() -> None:
    """Nobody takes the threads of silent workers."""

    class Deaf:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return _reclaim_nothing if name == "reclaim" else getattr(self._store, name)

    class DeafHeartbeat(heartbeat.Heartbeat):
        def __init__(self, store: Any, **named: Any) -> None:
            super().__init__(cast("Any", Deaf(store)), **named)

    setattr(worker, "Heartbeat", DeafHeartbeat)  # noqa: B010 - it is not exported


def _reclaim_nothing(silent: float) -> int:
    return 0


def without_wake_up() -> None:
    """A run that sleeps does not say when it is due again."""
    honest = Assignment.line

    def line(self: Assignment, info: ThreadInfo, retry_at: int | None) -> ThreadInfo:
        import msgspec.structs

        found = honest(self, info, retry_at)
        return msgspec.structs.replace(found, due_at=None) if info.wake_at else found

    Assignment.line = line  # type: ignore[method-assign]


def skewed() -> None:
    """Honest, with a clock that is an hour behind, right or an hour ahead; not that of a store."""
    import os
    import time

    from milecastle.app import clock

    hours = os.getpid() % 3 - 1
    setattr(clock, "time_ns", lambda: time.time_ns() + hours * 3600 * 10**9)  # noqa: B010


def own_clock() -> None:
    """Each worker fires every tick of its schedules by its own clock, and no fence decides."""
    from threading import Thread

    honest = Schedules.register

    def register(self: Schedules, *, insists: bool = False) -> None:
        if insists:
            Thread(target=_fire_forever, args=(self,), daemon=True).start()
        honest(self, insists=insists)

    def _fire_forever(schedules: Schedules) -> None:
        import os
        import time

        since, mine = time.time_ns() // 1000, str(os.getpid())
        while True:
            time.sleep(0.05)
            now = time.time_ns() // 1000
            for found in schedules.runs.values():
                for tick in found.schedule.ticks(since):
                    if tick > now:
                        break
                    key = ThreadKey(found.key.tenant, found.schedule.thread(tick))
                    call = Call(
                        input=found.schedule.input_at(tick),
                        thread=key,
                        key=mine,
                        if_exists="queue",
                        is_own=True,
                    )
                    with suppress(MilecastleError):
                        found.app.runner.submit(call)
            since = now

    Schedules.register = register  # type: ignore[method-assign]


def drops() -> None:
    """Every tenth tick is recorded as fired before it is, and then is not."""
    honest = ScheduleRun.submit

    def submit(self: ScheduleRun, tick: int, tenant: str, thread: str = "") -> Any:
        key = ThreadKey(tenant, self.schedule.thread(tick))
        if tick // 100_000 % 10 == 0:
            return Handle(key, "", "queued", False, cast("Any", None))
        return honest(self, tick, tenant, thread)

    ScheduleRun.submit = submit  # type: ignore[method-assign]


def without_owner() -> None:
    """A claim does not look whether a worker has the thread."""

    class Greedy:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return self._claim if name == "claim" else getattr(self._store, name)

        def _claim(self, *given: Any, **named: Any) -> Any:
            self._store.reclaim(-1.0)
            return self._store.claim(*given, **named)

    honest = claimer.Claimer.claim

    async def claim(self: claimer.Claimer, limit: int) -> int:
        held: dict[str, Any] = vars(self)
        context: Any = held["_context"]
        claims, context.claims = context.claims, Greedy(context.claims)
        try:
            return await honest(self, limit)
        finally:
            context.claims = claims

    setattr(claimer.Claimer, "claim", claim)  # noqa: B010 - a method is not assigned


def with_beats_on_loop() -> None:
    """The heartbeat waits for the event loop."""

    class Patient(heartbeat.Heartbeat):
        _last = 0.0

        def _run(self) -> None:
            while not self._stopped.wait(self._interval):
                self._ask()

        def answer(self) -> None:
            super().answer()
            if time.monotonic() - self._last >= self._interval / 2:
                self._last = time.monotonic()
                self.beat()

    setattr(worker, "Heartbeat", Patient)  # noqa: B010 - it is not exported


def without_consuming() -> None:
    """A step's commit consumes no messages."""

    def take(self: Received) -> tuple[int, ...]:
        honest(self)
        return ()

    honest, Received.take = Received.take, take  # type: ignore[method-assign]


def with_early_consuming() -> None:
    """A message is consumed when a node receives it, before its step's commit."""
    without_consuming()
    honest = RunTaskPort.receive

    def receive(self: RunTaskPort, task: RunTask, topics: Sequence[str]) -> Message | None:
        found = honest(self, task, topics)
        if found is not None:
            vars(self)["_services"].host.store.discard(self.key, found.number)
        return found

    RunTaskPort.receive = receive  # type: ignore[method-assign]


def notifies_after_the_commit() -> None:
    """A run's commit leaves no notice: its worker notifies the hooks a moment after it."""
    honest: Any = vars(run_segments.Segments)["_ended"]

    def ended(self: run_segments.Segments, segment: run_segments.ClaimedThread, task: Any) -> None:
        threads, info = segment.runner.threads, vars(self)["_context"].store.thread(segment.key)
        if threads is not None and info is not None and (event := event_of(info)):
            notice = Notice(event, info.run_id, 1)
            Timer(0.3, threads.notify, (segment.key, notice)).start()
        honest(self, segment, task)

    def without_notices(info: ThreadInfo, *_: object) -> ThreadInfo:
        return info

    setattr(journal, "with_notices", without_notices)  # noqa: B010 - it is not exported
    setattr(run_segments.Segments, "_ended", ended)  # noqa: B010 - a method is not assigned


def counts_no_keys() -> None:
    """Claims look at limits of graphs and tenants alone."""
    honest: Any = Rooms._covering  # pyright: ignore[reportPrivateUsage]

    def covering(self: Rooms, place: ClaimPlace) -> Any:
        return honest(self, (*place[:2], NO_KEY))

    def shut(self: Rooms, lane: str) -> frozenset[tuple[str, str]]:
        return frozenset()

    setattr(Rooms, "_covering", covering)  # noqa: B010 - a method is not assigned
    setattr(Rooms, "shut", shut)  # noqa: B010


def with_windows() -> None:
    """A bucket counts from the beginning of each period."""

    def take(
        self: BucketLevel, now: int, amount: int, known: BucketTake | None
    ) -> tuple[BucketLevel, BucketTake]:
        return WindowByTheMinute.Own.decide(cast("Any", None), self, now, amount, known)

    BucketLevel.take = take  # type: ignore[method-assign]


def without_granted_marks() -> None:
    """A bucket of SQLite forgets a mark once its amount was granted."""
    honest = SqliteBuckets.take

    def take(self: SqliteBuckets, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        began = time.time_ns() // 1000
        turn = honest(self, tenant, name, amount, mark)
        if turn is None or turn.wait or turn.ready_at >= began:
            return turn
        return honest(self, tenant, name, amount, f"{mark}{os.getpid()}")

    SqliteBuckets.take = take  # type: ignore[method-assign]


CHEATS: dict[str, Callable[[], None]] = {
    "honest": lambda: None,
    "no-reconciler": without_reconciler,
    "no-wake-up": without_wake_up,
    "skewed": skewed,
    "own-clock": own_clock,
    "drops": drops,
    "no-owner": without_owner,
    "beats-on-loop": with_beats_on_loop,
    "consumes-nothing": without_consuming,
    "consumes-on-receipt": with_early_consuming,
    "notifies-after": notifies_after_the_commit,
    "counts-no-keys": counts_no_keys,
    "windows": with_windows,
    "takes-again": without_granted_marks,
}


def lose_hints() -> None:
    """Of the hints of a PostgreSQL store a third is lost, a third is late, the others double."""
    from milecastle.stores.postgres import PostgresStore

    honest: Any = PostgresStore.listen

    def listen(self: PostgresStore, heard: Callable[[], None]) -> Any:
        def perhaps() -> None:
            chance = random.random()
            if chance < 0.33:
                return
            if chance < 0.66:
                Timer(0.5, heard).start()
                return
            heard()
            heard()

        return honest.fget(self)(perhaps)

    setattr(PostgresStore, "listen", property(lambda self: partial(listen, self)))  # noqa: B010


def let_clock_jump() -> None:
    """SIGUSR1 sets the clock of this process wrong, by up to ten seconds."""
    ahead = [0]
    honest = SystemClock.now

    def now(self: SystemClock) -> int:
        return honest(self) + ahead[0]

    def jump(*_: object) -> None:
        ahead[0] = random.randint(-10_000_000, 10_000_000)

    SystemClock.now = now  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, jump)


def relay(port: int, path: str) -> None:
    """Lead from a port of a network of our own to the socket of the server."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listening = socket.create_server(("127.0.0.1", port))

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            client, _ = listening.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(path)
            except OSError:
                client.close()
                continue
            for ends in ((client, server), (server, client)):
                Thread(target=copy, args=ends, daemon=True).start()

    Thread(target=accept, daemon=True).start()


if __name__ == "__main__":
    found = os.environ.get("MILECASTLE_TEST_RELAY", "")
    if found:
        relay(int(found.partition(":")[0]), found.partition(":")[2])
    lose_hints()
    let_clock_jump()
    CHEATS[sys.argv[1]]()
    cli(["worker", *sys.argv[2:]], prog_name="milecastle")
