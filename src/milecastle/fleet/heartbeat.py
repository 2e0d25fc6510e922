"""A worker's heartbeat, on a thread of its own: a node blocking the loop does not stop it.

It also keeps the fleet whole. With each beat the worker learns which threads were taken from it.
About once a second, and not only with a beat, threads of silent workers are taken from them: so a
dead worker's threads wait little longer than the limit of silence, however seldom workers beat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from threading import Event, Thread
from time import monotonic

from milecastle.errors import StoreError
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import WritesRefused
from milecastle.ports.workers import WorkerInfo

_log = logging.getLogger("milecastle.fleet")

_LOOK = 1.0
"""How often to look for silent workers, in seconds, at least."""

_LATE = 1.0
"""If a wait takes so many seconds longer, this process did not run meanwhile."""

_STUCK = 5.0
"""After how many seconds without a turn the event loop is reported as blocked."""


class Heartbeat:
    """Beats every ``interval`` seconds until it is stopped.

    ``describe`` returns the worker's data, ``check`` finds lost claims, and ``answer`` must be
    called on the event loop when ``ask`` was. ``wake`` is called if threads became due, and
    ``fail`` if the store refuses to write until it is reopened.
    """

    def __init__(
        self,
        store: ClaimStore,
        *,
        interval: float,
        describe: Callable[[], WorkerInfo],
        check: Callable[[], None],
        ask: Callable[[], None],
        wake: Callable[[], None],
        fail: Callable[[WritesRefused], None],
    ) -> None:
        self._store = store
        self._interval = interval
        self._describe = describe
        self._check = check
        self._ask = ask
        self._wake = wake
        self._fail = fail
        self._asked: float | None = None
        self._reported = False
        self._beaten: float | None = None
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="milecastle-heartbeat", daemon=True)

    def start(self) -> None:
        self._store.beat(self._describe())
        self._beaten = monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def answer(self) -> None:
        self._asked = None
        if self._reported:
            self._reported = False
            _log.warning("the event loop runs again")

    @property
    def age(self) -> float | None:
        return None if self._beaten is None else monotonic() - self._beaten

    @property
    def is_stuck(self) -> bool:
        return self._unanswered > _STUCK + self._interval

    @property
    def _unanswered(self) -> float:
        asked = self._asked
        return 0.0 if asked is None else monotonic() - asked

    def beat(self) -> None:
        self._try(self._beat)

    def _run(self) -> None:
        pause = self._interval / ceil(self._interval / _LOOK)
        while not self._is_stopped_within(pause):
            # A worker that has not beaten would take its own threads.
            is_due = self.age is None or self.age > self._interval - pause / 2
            self._try(self._beat if is_due else self.reclaim)

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait. If that takes much longer, the whole process was stopped: no node is to blame."""
        began = monotonic()
        stopped = self._stopped.wait(seconds)
        late = monotonic() - began - seconds
        if late > _STUCK:
            _log.warning(
                "worker %s: this process did not run for %.0f seconds: it was suspended, or had no "
                "processor",
                self._describe().id,
                late,
            )
        if late > _LATE and self._asked is not None:
            self._asked = monotonic()
        return stopped

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StoreError as error:
            _log.warning("worker %s: no heartbeat: %s", self._describe().id, error)
            if isinstance(error, WritesRefused):
                self._fail(error)
        except Exception:
            _log.exception("worker %s: the heartbeat failed", self._describe().id)

    def _beat(self) -> None:
        worker = self._describe()
        self._store.beat(worker)
        self._beaten = monotonic()
        self._check()
        self.reclaim()
        if self.is_stuck and not self._reported:
            self._reported = True
            _log.error(
                "worker %s: the event loop has been blocked for %.0f seconds: something called on "
                "it does not return. If it is an async node, make that a sync function",
                worker.id,
                self._unanswered,
            )
        if self._asked is None:
            self._asked = monotonic()
        self._ask()

    def reclaim(self) -> None:
        taken = self._store.reclaim()
        if taken:
            id = self._describe().id
            _log.warning("worker %s: %d threads of silent workers are due again", id, taken)
            self._wake()
