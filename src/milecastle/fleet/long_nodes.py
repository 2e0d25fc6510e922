"""Long nodes: runs whose worker is alive, but which have not moved for a long time.

A *lost* run is another matter: its worker is silent, and others take its thread. A run moves when
the driver performs an effect for it (a step, an item of a fan-out, a commit, also in a subgraph) or
a node calls ``ctx.heartbeat``. The heartbeat of the worker looks: nothing is measured per step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic

from milecastle.errors import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.support.printable import printable

_log = logging.getLogger("milecastle.fleet")


class LongNodes:
    """Finds a worker's runs which have not moved for ``after`` seconds.

    ``pulses`` gives the running threads, each with a number changing when it moves.
    """

    def __init__(
        self,
        store: Store,
        after: float,
        pulses: Callable[[], Mapping[ThreadKey, int]],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._after = after
        self._pulses = pulses
        self._now = now
        self._since: dict[ThreadKey, tuple[int, float]] = {}
        self._reported: set[ThreadKey] = set()

    @property
    def count(self) -> int:
        return len(self._reported)

    def look(self) -> None:
        now, pulses = self._now(), self._pulses()
        self._since = {
            key: known if (known := self._since.get(key)) and known[0] == pulse else (pulse, now)
            for key, pulse in pulses.items()
        }
        late = {
            key: now - since
            for key, (_, since) in self._since.items()
            if now - since >= self._after
        }
        fresh = late.keys() - self._reported
        self._reported = set(late)
        for key in fresh:
            self._report(key, late[key])

    def _report(self, key: ThreadKey, seconds: float) -> None:
        try:
            head = self._store.head(key)
        except StoreError:
            head = None
        nodes = ", ".join(map(printable, head.next if head else ())) or "the first, or unknown"
        _log.warning(
            "thread '%s': long node (%s): it has not ended for %.0f seconds, without a "
            "ctx.heartbeat(). Its worker is alive, so the run is not lost; if the node hangs, give "
            "it a Timeout",
            printable(key.thread),
            nodes,
            seconds,
        )
