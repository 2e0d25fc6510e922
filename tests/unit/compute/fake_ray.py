"""As much of Ray as its workers need, with threads in the place of its processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """What Ray raises."""


class ActorDiedError(RayError):
    """The process of an actor is gone."""

    actor_init_failed = False


class RuntimeEnvSetupError(RayError):
    """Ray could not prepare what an actor needs."""


class Call:
    """A method of an actor."""

    def __init__(self, actor: Actor, function: Callable[..., Any]) -> None:
        self._actor = actor
        self._function = function
        self._before: Future[Any] | None = None

    def options(self, *, concurrency_group: str) -> Call:
        assert concurrency_group in self._actor.groups
        return self

    def remote(self, *arguments: Any) -> Future[Any]:
        """Start it; calls of one method run one after another."""
        made: Future[Any] = Future()
        self._actor.pending.append(made)
        if self._actor.dead:
            self._actor.die()
            return made
        before, self._before = self._before, made
        threading.Thread(target=self._run, args=(made, before, arguments), daemon=True).start()
        return made

    def _run(self, made: Future[Any], before: Future[Any] | None, arguments: Any) -> None:
        if before is not None:
            before.exception()
        found = self._function(*arguments)
        with suppress(InvalidStateError):  # the actor is dead
            made.set_result(found)


class Actor:
    """An actor whose process is this one."""

    def __init__(self, made: Any, groups: dict[str, int], needs: dict[str, Any]) -> None:
        self.groups = groups
        self.needs = needs
        self.pending: list[Future[Any]] = []
        self.dead = False
        self.error: type[RayError] = ActorDiedError
        self.put = Call(self, made.put)
        self.take = Call(self, made.take)

    def die(self) -> None:
        self.dead = True
        for call in [*self.pending]:
            with suppress(InvalidStateError):  # it has ended
                call.set_exception(self.error())


class FakeRay:
    """The module ``ray``."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, **resources: float) -> None:
        self.resources = resources
        self.actors: list[Actor] = []
        self.stillborn: type[RayError] | None = None
        self.stillborns = 1_000
        self.begun: list[dict[str, Any]] = []

    def is_initialized(self) -> bool:
        return bool(self.begun)

    def init(self, **options: Any) -> None:
        self.begun.append(options)

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, *, max_restarts: int, concurrency_groups: dict[str, int]) -> Any:
        assert max_restarts == 0

        def decorated(made: type[Any]) -> Any:
            def options(**needs: Any) -> Any:
                def create() -> Actor:
                    actor = Actor(made(), concurrency_groups, needs)
                    self.actors.append(actor)
                    if self.stillborn is not None and self.stillborns > 0:
                        self.stillborns -= 1
                        actor.error = self.stillborn
                        actor.die()
                    return actor

                return SimpleNamespace(remote=create)

            return SimpleNamespace(options=options)

        return decorated

    def get(self, call: Future[Any]) -> Any:
        return call.result()

    def kill(self, actor: Actor) -> None:
        actor.die()
