"""``StateGraph``: the builder with the one method that makes an app of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.habits import refuse_checkpointer
from milecastle.app.keyring import Keyring
from milecastle.app.opening import find_store
from milecastle.errors import InvalidRequest
from milecastle.graph.builder import GraphBuilder
from milecastle.graph.compiled import compile_graph
from milecastle.graph.nodes import name_of
from milecastle.model.policies import CheckpointConfig, Retry, Timeout
from milecastle.observers.registry import find_observers
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.portable import FilePath
    from milecastle.recovery.declarations import Cache
    from milecastle.recovery.workspace import Workspace

__all__ = ["StateGraph"]

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])

Paths = Iterable[str | PathLike[str]] | str | PathLike[str]


class StateGraph(GraphBuilder, Generic[S]):
    """A graph over a state: declare nodes and edges, then ``compile()``.

    ``state`` is a TypedDict, a dataclass or a pydantic model; each field is a channel.
    """

    def __init__(self, state: type[S], *, name: str | None = None) -> None:
        super().__init__(state, name=name)

    @overload
    def node(self, function: F, /) -> F: ...
    @overload
    def node(
        self,
        function: None = None,
        /,
        *,
        name: str | None = ...,
        version: str = ...,
        inline: bool = ...,
        retry: Retry | int | None = ...,
        timeout: Timeout | float | None = ...,
        limit: int | None = ...,
        on_error: str | None = ...,
        defer: bool = ...,
        goto: Iterable[str] = ...,
        inputs: Paths = ...,
        outputs: Paths = ...,
        cache: Cache | None = ...,
    ) -> Callable[[F], F]: ...
    def node(
        self, function: F | None = None, /, *, name: str | None = None, **policy: Any
    ) -> F | Callable[[F], F]:
        """Declare the decorated function as a node, under its own name unless ``name`` is given.

        What else can be said of it is described at ``add_node``.
        """
        if isinstance(function, str):
            raise TypeError(f"to name a node, write @graph.node(name={function!r})")

        def declare(function: F) -> F:
            self.add_node(name_of(function) if name is None else name, function, **policy)
            return function

        return declare if function is None else declare(function)

    def add_node(
        self,
        name: str | Callable[..., Any],
        function: Any = None,
        *,
        version: str = "",
        inline: bool = False,
        retry: Retry | int | None = None,
        timeout: Timeout | float | None = None,
        limit: int | None = None,
        on_error: str | None = None,
        defer: bool = False,
        goto: Iterable[str] = (),
        give: Callable[[Any], Any] | None = None,
        take: Callable[[Any], Any] | None = None,
        inputs: Paths = (),
        outputs: Paths = (),
        cache: Cache | None = None,
    ) -> None:
        """Declare a node; ``add_node(function)`` uses the function's name.

        ``version`` is part of the fingerprint: raise it when the node's meaning changes.
        ``inline=True`` runs a sync node on the event loop when the graph runs async. ``retry`` and
        ``timeout`` say how it is tried (``retry=3``, ``timeout=30``), ``on_error`` what runs once
        it has failed for good. ``limit`` is how many tasks of it run at once in a fan-out;
        ``defer=True`` waits until no other node is left; ``goto`` lists where a ``Command`` leads.
        A compiled graph may be a node: ``give`` makes its input of the state, ``take`` the update
        of its last state; by default both share the keys that both have. In an app with a
        workspace, ``inputs`` and ``outputs`` are files that it reads and makes, ``cache`` says when
        a result is used again, and ``version``, if given, stands for the node's code.
        """
        if function is None and not isinstance(name, str):
            name, function = name_of(name), name
        if function is not None and (inputs or outputs or cache is not None):
            function = _declared(function, str(name), version, inputs, outputs, cache)
        self._add_node(
            name,
            function,
            version=version,
            inline=inline,
            retry=retry,
            timeout=timeout,
            limit=limit,
            on_error=on_error,
            defer=defer,
            goto=goto,
            give=give,
            take=take,
        )

    def compile(
        self,
        *,
        store: str | Store | CheckpointStore | None = None,
        checkpoint: CheckpointConfig | None = None,
        interrupt_before: Sequence[str] = (),
        interrupt_after: Sequence[str] = (),
        observers: Iterable[str | Observer] = (),
        tenant: str = "default",
        encryption: Keyring | None = None,
        checkpoint_dir: FilePath | None = None,
        signing_key: bytes | str | None = None,
        workspace: str | PathLike[str] | Workspace | None = None,
        checkpointer: object = None,
    ) -> App[S]:
        """Check the whole graph and freeze it; ``DefinitionError`` lists every problem.

        ``store`` is a URL (``"memory://"``), a registered name or a store; without one nothing is
        saved. ``checkpoint`` sets the store together with how often to save. With ``encryption``
        states are stored encrypted, and what is not is refused. ``workspace`` is the folder of
        caches and file runs: ``cache=``, ``plan`` and ``invoke(..., mode=...)`` need it.

        With ``checkpoint_dir`` a portable file is saved there before each interrupt event. With
        ``signing_key`` such files are signed, and none is opened that is not.
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
            checkpoint_dir=checkpoint_dir,
            signing_key=signing_key,
            encryption=encryption
            or (given.encryption if isinstance(given, CheckpointStore) else None),
            workspace=_open_workspace(workspace),
        )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _open(given: str | Store | CheckpointStore | None) -> Store | None:
    if isinstance(given, str):
        return find_store(given)
    return given.store if isinstance(given, CheckpointStore) else given


def _open_workspace(given: str | PathLike[str] | Workspace | None) -> Workspace | None:
    if given is None:
        return None
    from milecastle.recovery.workspace import Workspace

    return given if isinstance(given, Workspace) else Workspace(given)


def _declared(
    function: Any, name: str, version: str, inputs: Paths, outputs: Paths, cache: Cache | None
) -> Any:
    """The function with what it declares; what was declared before is not thrown away."""
    from milecastle.recovery.declarations import Files, as_paths, declare, files_of

    if not callable(function):
        raise TypeError(f"node {name!r} is no function, so it cannot declare files or a cache")
    if files_of(function) is not None:
        raise TypeError(f"node {name!r} declares its files twice: here, and with its function")
    declared = Files(
        inputs=as_paths(inputs), outputs=as_paths(outputs), cache=cache, version=version or None
    )
    return declare(function, declared)
