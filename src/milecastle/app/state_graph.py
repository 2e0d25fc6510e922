"""``StateGraph``: the builder with the one method that makes an app of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.habits import refuse_checkpointer
from milecastle.app.opening import find_store
from milecastle.errors import InvalidRequest
from milecastle.graph.builder import GraphBuilder
from milecastle.graph.compiled import compile_graph
from milecastle.model.policies import CheckpointConfig
from milecastle.observers.registry import find_observers
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store

__all__ = ["StateGraph"]

S = TypeVar("S")


class StateGraph(GraphBuilder, Generic[S]):
    """A graph over a state: declare nodes and edges, then ``compile()``.

    ``state`` is a TypedDict, a dataclass or a pydantic model; each field is a channel.
    """

    def __init__(self, state: type[S], *, name: str | None = None) -> None:
        super().__init__(state, name=name)

    def compile(
        self,
        *,
        store: str | Store | CheckpointStore | None = None,
        checkpoint: CheckpointConfig | None = None,
        interrupt_before: Sequence[str] = (),
        interrupt_after: Sequence[str] = (),
        observers: Iterable[str | Observer] = (),
        tenant: str = "default",
        checkpointer: object = None,
    ) -> App[S]:
        """Check the whole graph and freeze it; ``DefinitionError`` lists every problem.

        ``store`` is a URL (``"memory://"``), a registered name or a store; without one nothing is
        saved. ``checkpoint`` sets the store together with how often to save.
        """
        refuse_checkpointer(checkpointer)
        graph = compile_graph(
            self._declared,
            interrupt_before=_names(interrupt_before),
            interrupt_after=_names(interrupt_after),
        )
        if checkpoint is None:
            checkpoint = CheckpointConfig(store=store)
        elif store is not None and checkpoint.store is not None:
            raise InvalidRequest("give the store once: as store= or in CheckpointConfig, not both")
        given = checkpoint.store if store is None else store
        opened = _open(given)
        return App(
            graph,
            store=opened if checkpoint.interval else None,
            interval=checkpoint.interval,
            preserve=checkpoint.preserve,
            observers=find_observers(observers),
            tenant=tenant,
        )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _open(given: str | Store | CheckpointStore | None) -> Store | None:
    if isinstance(given, str):
        return find_store(given)
    return given.store if isinstance(given, CheckpointStore) else given
