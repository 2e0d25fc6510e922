"""A worker process's probes and metrics, over HTTP: ``--metrics``.

Rules:

- They are answered on their own threads, so also while a node blocks the event loop or the
  store hangs: nothing here waits for either for longer than a moment.
- ``/healthz``: this process works; a process that fails it should be restarted. ``/readyz``: this
  worker takes threads. ``/metrics``: Prometheus' text format.
- GET only, few requests at a time, and nothing about any thread's state.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Event, Lock, Thread
from time import monotonic
from typing import Any

from milecastle.errors import InvalidRequest, StoreError
from milecastle.fleet.prometheus import (
    CONTENT_TYPE,
    Family,
    Labels,
    bucket_families,
    queue_families,
    render,
)
from milecastle.fleet.worker import Worker
from milecastle.ports.buckets import bucket_levels
from milecastle.ports.claims import ClaimStore

_log = logging.getLogger("milecastle.fleet")

_STUCK = 10.0
"""After how many seconds without a turn the event loop fails both probes."""

_TICK = 0.5
_FRESH = 5.0
_PATIENCE = 2.0
"""Seconds: between two turns that are noted; for which the depths of the queue are not read again;
for which a scrape waits for them."""

_AT_ONCE = 8
_SLOW = 5.0
"""How many requests are answered in parallel, and the seconds that a client may take to ask."""


def parse_address(given: str) -> tuple[str, int]:
    """``PORT`` or ``HOST:PORT``; without a host, only this machine can connect."""
    host, _, port = given.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidRequest(f"--metrics takes PORT or HOST:PORT, not '{given}'")
    return host.strip("[]") or "127.0.0.1", int(port)


class Probes:
    """Probes for one worker. ``port`` is the actual one, even if 0 was requested."""

    def __init__(self, worker: Worker, address: tuple[str, int]) -> None:
        self._worker = worker
        self._turned: float | None = None
        self._depths = _Depths(worker.store)
        try:
            self._server = _Server(address, self)
        except (OSError, OverflowError) as error:
            host, port = address
            raise InvalidRequest(f"--metrics {host}:{port} cannot be served: {error}") from None
        self.port: int = self._server.server_address[1]

    @contextmanager
    def serving(self) -> Generator[None, None, None]:
        ticking = asyncio.create_task(self._tick())
        thread = Thread(target=self._server.serve_forever, name="milecastle-probes", daemon=True)
        thread.start()
        _log.info("worker %s answers probes on port %d", self._worker.id, self.port)
        try:
            yield
        finally:
            ticking.cancel()
            self._server.shutdown()
            self._server.server_close()

    async def _tick(self) -> None:
        while True:
            self._turned = monotonic()
            await asyncio.sleep(_TICK)

    @property
    def _lag(self) -> float:
        return 0.0 if self._turned is None else max(0.0, monotonic() - self._turned - _TICK)

    def health(self) -> list[str]:
        lag = self._lag
        return [f"the event loop has been blocked for {lag:.0f} seconds"] if lag > _STUCK else []

    def readiness(self) -> list[str]:
        worker, found = self._worker, self.health()
        age = worker.heartbeat_age
        if age is None:
            found.append("it has not started yet")
        elif age > worker.options.silent_after:
            found.append(f"the store has taken no heartbeat for {age:.0f} seconds")
        if worker.is_deaf:
            found.append("the listener is not connected to the store")
        if worker.is_draining:
            found.append("it is draining")
        return found

    def metrics(self) -> str:
        queue, age = self._depths.get()
        queue = [*queue]
        queue.append(_gauge("queue_data_age_seconds", "How long ago the queue was read.", age))
        return render([*self._of_worker(), *queue, *self._worker.durations])

    def _of_worker(self) -> list[Family]:
        worker = self._worker
        age = worker.heartbeat_age
        return [
            *(self._counter(name, label, help) for name, label, help in _TOTALS),
            _gauge("running", "Threads that this worker runs.", worker.running),
            _gauge("capacity", "Threads that it runs at most.", worker.options.concurrency),
            _gauge("long_nodes", "Runs that have not moved for --stuck-after.", worker.long_nodes),
            _gauge("draining", "1 while it drains.", worker.is_draining),
            _gauge("ready", "1 if /readyz is fine.", not self.readiness()),
            _gauge(
                "heartbeat_age_seconds",
                "The time since the store took a heartbeat.",
                float("nan") if age is None else age,
            ),
            _gauge("loop_lag_seconds", "For how long the event loop is late.", self._lag),
        ]

    def _counter(self, name: str, label: str, help: str) -> Family:
        samples: dict[Labels, float] = {} if label else {(): 0.0}
        for value, total in self._worker.counters.totals(name).items():
            samples[((label, value),) if label else ()] = total
        return Family(f"{name}_total", "counter", help, samples)


_TOTALS = (
    ("claims", "", "Claims, also those that found nothing."),
    ("claim_seconds", "", "The time that claims took."),
    ("segments_started", "", "Segments: runs from wake-up to rest."),
    ("segments_ended", "status", "Segments that ended, by how."),
    ("segments_retried", "", "Segments that retried a run that had failed."),
    ("segments_taken_over", "", "Segments of runs whose worker had been lost."),
    ("threads_refused", "", "Threads that did not fit the code of this worker."),
    ("threads_lost", "", "Threads that were taken from this worker."),
    ("threads_released", "", "Threads that it released before they stopped."),
)


def _gauge(name: str, help: str, value: float) -> Family:
    return Family(name, "gauge", help, {(): float(value)})


class _Depths:
    def __init__(self, store: ClaimStore) -> None:
        self._store = store
        self._lock = Lock()
        self._found: Sequence[Family] = queue_families(())
        self._read_at: float | None = None
        self._reading: Event | None = None

    def get(self) -> tuple[Sequence[Family], float]:
        with self._lock:
            reading, age = self._reading, self._age()
            if reading is None and not age <= _FRESH:
                reading = self._reading = Event()
                Thread(target=self._read, args=(reading,), daemon=True).start()
        if reading is not None:
            reading.wait(_PATIENCE)
        with self._lock:
            return self._found, self._age()

    def _age(self) -> float:
        return float("nan") if self._read_at is None else monotonic() - self._read_at

    def _read(self, reading: Event) -> None:
        try:
            store = self._store
            buckets = bucket_families(bucket_levels(store), store.now())
            found = [*queue_families(store.depths()), *buckets]
        except StoreError as error:
            _log.warning("the depths of the queue cannot be read: %s", error)
            found = None
        with self._lock:
            if found is not None:
                self._found, self._read_at = found, monotonic()
            self._reading = None
        reading.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], probes: Probes) -> None:
        self.probes = probes
        self._room = BoundedSemaphore(_AT_ONCE)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a probe was not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server_version = "milecastle"
    sys_version = ""
    timeout = _SLOW

    def do_GET(self) -> None:
        probes = self.server.probes if isinstance(self.server, _Server) else None
        path = self.path.partition("?")[0]
        if probes is None or path not in ("/healthz", "/readyz", "/metrics"):
            self._answer(404, "see /healthz, /readyz and /metrics")
        elif path == "/metrics":
            self._answer(200, probes.metrics(), CONTENT_TYPE)
        else:
            found = probes.health() if path == "/healthz" else probes.readiness()
            self._answer(503 if found else 200, "\n".join(found) or "ok")

    def _answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode() if kind == CONTENT_TYPE else f"{text}\n".encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...
