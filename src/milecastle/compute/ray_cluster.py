"""Ray actors: the process pool with actors instead.

Rules:

- Frames of messages are all that travels by Ray. Ray stores large ones (above 100 KiB) in its
  object store, on the actor's machine.
- An actor is never restarted, and no call of it is repeated, by Ray: whether a task is tried again
  is decided by its run, which records attempts.
- Actors belong to this process: when it ends, however it does, Ray ends them.
- No more actors are started than the cluster has resources for. One Ray cannot place yet
  takes no task.
- When no call has used them for ``IDLE`` seconds, they are ended: others need the resources.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, Timer
from time import monotonic
from typing import Any, Final

from milecastle.compute.processes import NearPipe, Process, ProcessPool
from milecastle.compute.task_client import RemoteTask
from milecastle.compute.task_server import Server
from milecastle.errors import InvalidRequest
from milecastle.model.policies import Ray
from milecastle.support.forking import call_in_child

IDLE: Final = 10.0
"""Seconds after which actors that no call uses are ended."""

_MOST_STILLBORN: Final = 10
"""So many actors may be lost in a row before they take a task: their node may be ending."""

_RECOUNT: Final = 1.0
"""Seconds after which it is counted again how many actors the cluster has room for."""


class QueuePipe:
    def __init__(self) -> None:
        self.inbox: SimpleQueue[bytes] = SimpleQueue()
        self.outbox: SimpleQueue[bytes] = SimpleQueue()

    def send_bytes(self, data: bytes, /) -> None:
        self.outbox.put(data)

    def recv_bytes(self) -> bytes:
        return self.inbox.get()


class FarActor:
    """The task server as an actor. Ray calls ``put`` and ``take`` on one thread each."""

    def __init__(self) -> None:
        self._pipe = QueuePipe()
        serve = Server(self._pipe).serve
        Thread(target=serve, args=(lambda: None,), name="milecastle-tasks", daemon=True).start()

    def put(self, frame: bytes) -> None:
        self._pipe.inbox.put(frame)

    def take(self) -> list[bytes]:
        outbox = self._pipe.outbox
        frames = [outbox.get()]
        while not outbox.empty():
            frames.append(outbox.get())
        return frames


class _Actor:
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._put = actor.put.options(concurrency_group="in")
        self._take = actor.take.options(concurrency_group="out")
        self._frames: deque[bytes] = deque()
        self.exitcode: int | None = None
        self.how = "was ended"
        self.is_unfit = False

    def send_bytes(self, data: bytes) -> None:
        self._call(self._put, data)

    def recv_bytes(self) -> bytes:
        while not self._frames:
            try:
                self._frames.extend(self._ray.get(self._call(self._take)))
            except Exception as error:  # some of Ray's have no class of their own
                if self.exitcode is None:
                    self.how = f"was lost by Ray ({type(error).__name__})"
                    # True if its code failed; an error that is not about a lost actor has none
                    self.is_unfit = getattr(error, "actor_init_failed", True)
                raise EOFError from error
        return self._frames.popleft()

    def _call(self, method: Any, *arguments: Any) -> Any:
        if not self._ray.is_initialized():
            raise EOFError("Ray was shut down")
        try:
            return method.remote(*arguments)
        except Exception as error:
            raise OSError("Ray does not know the actor") from error

    def join(self, timeout: float | None = None) -> None: ...

    def kill(self) -> None:
        self.exitcode = -1
        if self._ray.is_initialized():
            with suppress(Exception):  # Ray does not know it any more
                self._ray.kill(self._actor)

    close = kill


class RayActors(ProcessPool):
    hint = "; look for its error in Ray's logs, and whether the cluster can start such an actor"

    def __init__(self, ray: Any, needs: Ray) -> None:
        super().__init__(1)
        self._ray = ray
        self._needs = needs
        self._counted = self._used = 0.0
        self._timer: Timer | None = None
        made = ray.remote(max_restarts=0, concurrency_groups={"in": 1, "out": 1})(FarActor)
        others = dict(needs.resources or {})
        options = {
            "num_cpus": needs.num_cpus,
            "num_gpus": others.pop("GPU", None),  # Ray takes it only under this name
            "memory": needs.memory,
            "resources": others or None,
            "runtime_env": dict(needs.runtime_env) if needs.runtime_env else None,
        }
        self._actors = made.options(
            **{name: value for name, value in options.items() if value is not None}
        )

    def submit(self, tasks: Sequence[RemoteTask]) -> None:
        now = monotonic()
        if now >= self._counted + _RECOUNT:
            self._counted = now
            self._most = self._room()
        self._used = now
        super().submit(tasks)

    def forget(self, runs: Iterable[int]) -> None:
        super().forget(runs)
        with self._lock:
            if self._timer is None and not self._closed:
                self._look_later()

    def _look_later(self) -> None:
        self._timer = Timer(IDLE, self._release)
        self._timer.daemon = True
        self._timer.start()

    def _release(self) -> None:
        with self._lock:
            self._timer = None
            if self._waiting or any(child.tasks or child.bases for child in self._children):
                return  # the call that uses them looks again when it is over
            if monotonic() < self._used + IDLE:
                self._look_later()
                return
            children, self._children = self._children, []
        for child in children:
            child.process.kill()

    def _room(self) -> int:
        wanted = {"CPU": self._needs.num_cpus, **(self._needs.resources or {})}
        if self._needs.memory is not None:
            wanted["memory"] = self._needs.memory
        found = self._ray.cluster_resources()
        return max(1, int(min(found.get(name, 0) / need for name, need in wanted.items() if need)))

    def _connect(self) -> tuple[Process, NearPipe]:
        actor = _Actor(self._ray, self._actors.remote())
        return actor, actor

    def _how(self, process: Process) -> str:
        return process.how if isinstance(process, _Actor) else super()._how(process)

    def _gives_up(self, process: Process) -> bool:
        lost = isinstance(process, _Actor) and not process.is_unfit
        return not lost or self._stillborn >= _MOST_STILLBORN


_clusters: dict[Ray, RayActors] = {}
_making = Lock()


def shared_cluster(needs: Ray) -> RayActors:
    """This process's actors with these needs. Initializes Ray if the caller did not."""
    with _making:
        found = _clusters.get(needs)
        if found is None:
            found = _clusters[needs] = RayActors(_ray(), needs)
            atexit.register(found.close)
        return found


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise InvalidRequest(
            'run_on="ray" needs Ray, which is not installed: pip install "milecastle[ray]"'
        ) from None
    made: Any = ray
    if not made.is_initialized():
        made.init(log_to_driver=False)
    return made


def _start_over() -> None:
    global _making  # noqa: PLW0603 - whoever held it is not in this process
    for actors in _clusters.values():
        atexit.unregister(actors.close)
    _clusters.clear()
    _making = Lock()


call_in_child(_start_over)
