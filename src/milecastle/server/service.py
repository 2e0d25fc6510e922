"""A server's apps, which share a store, and perhaps a worker running them here.

Handlers get it with each request. Whatever may wait for the store is called off the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from milecastle.app.application import App
from milecastle.app.encryption.keyring import Keyring
from milecastle.app.threads.archived import refuse_archived
from milecastle.app.with_store import on_one_store
from milecastle.codec.envelope import ENCRYPTED
from milecastle.engine.status import claimed
from milecastle.errors import CodecError, EncryptionError, InvalidRequest, NoKeyring, ResumeRefused
from milecastle.fleet.histograms import QUICK, Histogram
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.model.keys import ThreadKey, refuse_reserved, refuse_subgraph
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Chain, Store
from milecastle.server.broadcasts import Broadcasts
from milecastle.server.problems import NO_THREAD, NOT_FOUND, Refused
from milecastle.server.redaction import Redact
from milecastle.server.turns import THREADS, ServerThreads
from milecastle.views.decoding import Decoded, decode
from milecastle.views.node_statistics import StatisticsCache
from milecastle.views.showing import Shown, read_shown

_log = logging.getLogger("milecastle.server")

T = TypeVar("T")

_FEW: Final = 16 * 1024
"""Bytes that are handled on the event loop: it takes less time than a call on another thread."""


def is_shared(store: Store) -> bool:
    """True if a fleet runs submitted work: other processes are notified at once."""
    return store.listen is not None


class Service:
    """The apps, their store, the worker, and broadcasts for threads with readers.

    ``closing`` is set when the server is to stop. Values leaving pass ``redact``. All requests
    share ``statistics``, and ``requests``: their durations, by the routes in our tables.
    """

    def __init__(
        self,
        apps: Sequence[App[Any]],
        *,
        worker: bool | None = None,
        options: WorkerOptions | None = None,
        redact: Redact | None = None,
    ) -> None:
        if not apps:
            raise InvalidRequest("a server needs at least one app")
        apps = on_one_store(apps)
        self.store = apps[0].store
        self.apps = {app.graph.name: app for app in apps}
        if len(self.apps) < len(apps):
            raise InvalidRequest("two apps of this server have graphs of the same name")
        self.closing = asyncio.Event()
        self.broadcasts = Broadcasts()
        self.redact = redact
        self.statistics = StatisticsCache(self.store, self._keyring)
        self.requests = Histogram(
            "http_request_seconds",
            "From the head of a request to that of its answer.",
            QUICK,
            ("method", "route", "status"),
        )
        self._threads = ServerThreads(THREADS, "milecastle-server")
        self._probes = ServerThreads(1, "milecastle-probe")
        runs = isinstance(self.store, ClaimStore) and not is_shared(self.store)
        self.worker = Worker(apps, options) if (runs if worker is None else worker) else None

    @property
    def tenant(self) -> str:
        return next(iter(self.apps.values())).tenant

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Run the worker, if any, while the block runs; then drain it."""
        if self.worker is None:
            yield
            return
        task = asyncio.create_task(self.worker.run())
        task.add_done_callback(self._report)
        try:
            yield
        finally:
            self.worker.stop()
            await asyncio.wait([task])

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the worker of this server has ended: %s", type(error).__name__)

    async def off_loop(self, function: Callable[..., T], *args: Any) -> T:
        return await self._threads.call(function, *args)

    async def ready(self, function: Callable[..., T], *args: Any) -> T:
        return await self._probes.call(function, *args)

    async def if_large(self, size: int, function: Callable[..., T], *args: Any) -> T:
        """Call something whose work grows with ``size`` bytes; inline if they are few."""
        return function(*args) if size <= _FEW else await self.off_loop(function, *args)

    # ---- threads: off the event loop

    def key(self, tenant: str, thread: str) -> ThreadKey:
        """A thread's key; subgraph threads are reached through their parents."""
        refuse_reserved(tenant)
        refuse_subgraph(thread)
        return ThreadKey(tenant, thread)

    def line(self, key: ThreadKey) -> ThreadInfo:
        info = self.store.thread(key)
        if info is None:
            raise Refused(NO_THREAD, 404, "there is no such thread; submit a run to start it")
        return claimed(info)

    def _keyring(self, graph: str) -> Keyring | None:
        app = self.apps.get(graph)
        return None if app is None else app.encryption

    def keyring_of(self, info: ThreadInfo) -> Keyring | None:
        """A thread's keys: its app's, or the first app's with any."""
        served = self.apps.get(info.graph)
        found = [app.encryption for app in ([served] if served else self.apps.values())]
        return next(filter(None, found), None)

    def app_of(self, key: ThreadKey) -> App[Any]:
        return self.named(self.line(key).graph)

    def refuse_other_graph(self, key: ThreadKey, graph: str) -> None:
        if self.line(key).graph != graph:
            raise ResumeRefused(
                key.thread, ["it is of another graph"], done="changed", advice="name its graph"
            )

    def named(self, graph: str) -> App[Any]:
        app = self.apps.get(graph)
        if app is None:
            raise InvalidRequest("this server does not serve the graph of the thread")
        return app

    def app_for(self, key: ThreadKey, graph: str | None) -> App[Any]:
        if graph is not None:
            return self.named(graph)
        if len(self.apps) == 1:
            return next(iter(self.apps.values()))
        info = self.store.thread(key)
        if info is None:
            raise InvalidRequest("this server has several graphs: say which one, as graph")
        return self.named(info.graph)

    def chain(self, key: ThreadKey, at: str | int | None) -> Chain:
        return self._existing(key, at, self.store.read_state)

    def shown(self, key: ThreadKey, at: str | int | None) -> Shown:
        return self._existing(key, at, partial(read_shown, self.store))

    def _existing(
        self,
        key: ThreadKey,
        at: str | int | None,
        read: Callable[[ThreadKey, int | None], T | None],
    ) -> T:
        seq = at if isinstance(at, int) or at is None else self._seq(key, at)
        found = None if seq is not None and seq < 1 else read(key, seq)
        if found is None:
            if at is None:
                raise Refused(NO_THREAD, 404, "there is no such thread")
            if seq is not None and seq > 0:
                refuse_archived(self.store, key, seq)
            raise Refused(NOT_FOUND, 404, "there is no such checkpoint")
        return found

    def _seq(self, key: ThreadKey, at: str) -> int:
        if at.isdecimal() and at.isascii() and len(at) < 18:
            return int(at)
        return self.store.locate(key, at) or 0

    def decoded(self, key: ThreadKey, chain: Chain) -> Decoded:
        """The state at a chain's end, with its graph's types if they are served here.

        Raises:
            EncryptionError: it is encrypted, and cannot be decrypted here.
        """
        info = self.store.thread(key)
        app = self.apps.get(info.graph) if info else None
        keyring = None if app is None else app.encryption
        if keyring is None and chain.entries[-1].payload[1] & ENCRYPTED:
            raise NoKeyring("the thread is encrypted, and this server does not have its key")
        graph = None if app is None else app.graph
        try:
            return decode(key, chain, graph, lambda: keyring)
        except EncryptionError:
            raise
        except CodecError:
            if graph is None:
                raise
            return decode(key, chain, None, lambda: keyring)
