"""The heartbeat of a worker, on a thread of its own: a node that blocks the loop does not stop it.

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
from milecastle.ports.claims import ClaimStore, WorkerInfo

__all__ = ["Heartbeat"]

_log = logging.getLogger("milecastle.fleet")

_LOOK = 1.0
"""How often to look for silent workers, in seconds, at least."""

_STUCK = 5.0
"""After how many seconds without a turn the event loop is reported as blocked."""


class Heartbeat:
    """Beats every ``interval`` seconds until it is stopped.

    ``describe`` says what the worker is now, ``check`` finds out what it has lost, and ``answer``
    must be called on the event loop when ``ask`` was. ``wake`` is called if threads became due.
    """

    def __init__(
        self,
        store: ClaimStore,
        *,
        interval: float,
        silent: float,
        describe: Callable[[], WorkerInfo],
        check: Callable[[], None],
        ask: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._interval = interval
        self._silent = silent
        self._describe = describe
        self._check = check
        self._ask = ask
        self._wake = wake
        self._answered = monotonic()
        self._reported = False
        self._beaten: float | None = None
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="milecastle-heartbeat", daemon=True)

    def start(self) -> None:
        """Beat once, so that the worker may claim, then continue in the background."""
        self._store.beat(self._describe())
        self._beaten = monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating, and wait until the last beat is over."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def answer(self) -> None:
        """The event loop runs."""
        self._answered = monotonic()
        if self._reported:
            self._reported = False
            _log.warning("the event loop runs again")

    @property
    def age(self) -> float | None:
        """For how many seconds the store has taken none; ``None`` before the first."""
        return None if self._beaten is None else monotonic() - self._beaten

    @property
    def is_stuck(self) -> bool:
        """Whether the event loop has not run for a while."""
        return monotonic() - self._answered > _STUCK + self._interval

    def beat(self) -> None:
        """Beat once. If that fails, the next one may work: the thread continues."""
        self._try(self._beat)

    def _run(self) -> None:
        pause = self._interval / ceil(self._interval / _LOOK)
        while not self._stopped.wait(pause):
            # A worker that has not beaten would take its own threads.
            is_due = self.age is None or self.age > self._interval - pause / 2
            self._try(self._beat if is_due else self._reclaim)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StoreError as error:
            _log.warning("worker %s: no heartbeat: %s", self._describe().id, error)
        except Exception:
            _log.exception("worker %s: the heartbeat failed", self._describe().id)

    def _beat(self) -> None:
        worker = self._describe()
        self._store.beat(worker)
        self._beaten = monotonic()
        self._check()
        self._reclaim()
        if self.is_stuck and not self._reported:
            self._reported = True
            _log.error(
                "worker %s: the event loop has been blocked for %.0f seconds: a node that blocks "
                "must be a sync function",
                worker.id,
                monotonic() - self._answered,
            )
        self._ask()

    def _reclaim(self) -> None:
        taken = self._store.reclaim(self._silent)
        if taken:
            id = self._describe().id
            _log.warning("worker %s: %d threads of silent workers are due again", id, taken)
            self._wake()
