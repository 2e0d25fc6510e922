"""``StateGraph``: the graph builder, with ``compile()`` to turn it into an app."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, cast, overload

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.clock import SystemClock
from milecastle.app.encryption.keyring import Keyring
from milecastle.app.runner import AppSettings, Runner
from milecastle.errors import DefinitionError, InvalidRequest, Problem
from milecastle.graph.builder import GraphBuilder
from milecastle.graph.compiling import compile_graph
from milecastle.graph.functions import caller, name_of
from milecastle.graph.structure import CompiledGraph
from milecastle.model.policies import CheckpointConfig, Retry, RunOn, Timeout
from milecastle.observers.registry import find_observers
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store
from milecastle.stores.opening import find_store, require_store, with_objects
from milecastle.support.migration_hints import explains_keywords, refuse_attribute

if TYPE_CHECKING:
    from milecastle.app.memory import Memory
    from milecastle.app.portable.files import FilePath
    from milecastle.builds.cache import SharedCache
    from milecastle.builds.nodes import Cache
    from milecastle.builds.workspace import Workspace
    from milecastle.stores.offloading import ObjectStorage

    class NodeOptions(TypedDict, total=False):
        version: str
        inline: bool
        retry: Retry | int | None
        timeout: Timeout | float | None
        limit: int | None
        on_error: str | None
        defer: bool
        goto: Iterable[str]
        give: Callable[[Any], Any] | None
        take: Callable[[Any], Any] | None
        inputs: Paths
        outputs: Paths
        cache: Cache | None
        run_on: RunOn | None
        renamed_from: str | Iterable[str]


S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])

Paths = Iterable[str | PathLike[str]] | str | PathLike[str]


class StateGraph(GraphBuilder[S], Generic[S]):
    """A graph over a state: declare nodes and edges, then ``compile()``.

    ``state`` is a TypedDict, a dataclass or a pydantic model; each field is a channel. ``input``
    and ``output`` are classes declaring some of its keys again: every input must have those that
    ``input`` requires and no key it lacks, and a result shows those of ``output``. Forms and
    JSON schemas are made from them. ``topics`` are the message types, by topic: ``send`` refuses
    others. ``config`` is the class for a run's config, which is then stored with the run, and is
    ``ctx.config`` in every process. They are not in the fingerprint: paused threads continue.
    """

    @explains_keywords
    def __init__(
        self,
        state: type[S],
        *,
        name: str | None = None,
        input: type | None = None,
        output: type | None = None,
        topics: Mapping[str, Any] | None = None,
        config: type | None = None,
    ) -> None:
        super().__init__(state, name=name, input=input, output=output, topics=topics, config=config)

    @overload
    def node(self, function: F, /) -> F: ...
    @overload
    def node(
        self, function: None = None, /, *, name: str | None = ..., **options: Unpack[NodeOptions]
    ) -> Callable[[F], F]: ...
    def node(
        self, function: F | None = None, /, *, name: str | None = None, **options: Any
    ) -> F | Callable[[F], F]:
        """Declare the decorated function as a node, under its own name unless ``name`` is given.

        Its options are ``add_node``'s. Declaring a function with the same qualified name
        again replaces the first: so a notebook cell can be run again.
        """
        if isinstance(function, str):
            raise TypeError(f"to name a node, write @graph.node(name={function!r})")

        def declare(function: F) -> F:
            called = name_of(function) if name is None else name
            earlier = self._find_node(called, function)
            self.add_node(called, function, **options)
            if earlier is not None:
                self._declared.nodes[earlier] = self._declared.nodes.pop()
            return function

        return declare if function is None else declare(function)

    @overload
    def add_node(
        self, name: str, function: Callable[[S], Any], **options: Unpack[NodeOptions]
    ) -> Self: ...
    @overload
    def add_node(
        self, name: str, function: Callable[..., Any] | App[Any], **options: Unpack[NodeOptions]
    ) -> Self: ...
    @overload
    def add_node(self, name: Callable[..., Any], /, **options: Unpack[NodeOptions]) -> Self: ...
    @explains_keywords
    def add_node(
        self,
        name: str | Callable[..., Any],
        function: Callable[..., Any] | App[Any] | None = None,
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
        run_on: RunOn | None = None,
        renamed_from: str | Iterable[str] = (),
    ) -> Self:
        """Declare a node; ``add_node(function)`` uses the function's name.

        Raise ``version``, which is in the fingerprint, when the node's meaning changes;
        ``renamed_from`` is its former name. ``inline=True`` runs a sync node on the event loop,
        ``run_on="process"`` in other processes. ``on_error`` names the node running once this one
        has failed for good. ``limit`` is how many tasks it may have at once in a fan-out;
        ``defer=True`` waits until no other node is left; ``goto`` lists the targets of a
        ``Command``. ``give`` makes a subgraph's input and ``take`` the update, by default from the
        keys both have. ``inputs``, ``outputs`` are files, ``cache`` says when a result is reused.
        """
        if function is None and not isinstance(name, str):
            function, name = name, name_of(name)
        if function is not None and (inputs or outputs or cache is not None):
            function = _declared(function, str(name), version, inputs, outputs, cache, run_on)
        policy: dict[str, Any] = {"limit": limit, "on_error": on_error, "defer": defer}
        policy |= {"inline": inline, "give": give, "take": take, "run_on": run_on}
        self._add_node(
            name,
            function,
            version=version,
            retry=retry,
            timeout=timeout,
            goto=goto,
            renamed_from=renamed_from,
            **policy,
        )
        return self

    @explains_keywords
    def compile(
        self,
        *,
        store: str | Store | CheckpointStore | None = None,
        checkpoint: CheckpointConfig | None = None,
        interrupt_before: Sequence[str] = (),
        interrupt_after: Sequence[str] = (),
        observers: Iterable[str | Observer] | str | Observer = (),
        tenant: str = "default",
        encryption: Keyring | None = None,
        objects: str | ObjectStorage | None = None,
        checkpoint_dir: FilePath | None = None,
        signing_key: bytes | str | None = None,
        workspace: str | PathLike[str] | Workspace | None = None,
        retry_runs: Retry | None = None,
        memory: Memory | None = None,
    ) -> App[S]:
        """Check the whole graph and freeze it; ``DefinitionError`` lists every problem.

        ``store`` is a URL (``"memory://"``), a registered name or a store; without one nothing is
        saved. ``checkpoint`` sets the store together with how often to save. With ``encryption``
        states are stored encrypted, and plaintext is refused. ``objects`` is a storage URL
        for large values (``"s3://bucket/prefix"``). ``workspace`` is the folder for ``cache=`` and
        file runs; a graph with declared files then needs fixed edges and no interrupts.
        ``checkpoint_dir`` gets a portable file before each interrupt event; with ``signing_key``
        such files are signed, and others refused. ``retry_runs``: which failed runs workers retry.
        ``memory`` has settings for long-term memory, such as a function for embeddings.
        """
        graph = compile_graph(
            self._declared,
            interrupt_before=_names(interrupt_before),
            interrupt_after=_names(interrupt_after),
        )
        checkpoint = _checkpoint(checkpoint, store)
        given = checkpoint.store if store is None else store
        opened = _open(given, objects)
        if encryption is None and isinstance(given, CheckpointStore):
            encryption = given.encryption
        settings = AppSettings(
            clock=SystemClock(),
            store=opened if checkpoint.interval else None,
            place=_place(given, objects),
            interval=checkpoint.interval,
            preserve=checkpoint.preserve,
            observers=find_observers(observers),
            tenant=tenant,
            checkpoint_dir=checkpoint_dir,
            signing_key=signing_key,
            encryption=encryption,
            workspace=_open_workspace(workspace, graph),
            shared_cache=_open_shared_cache(objects),
            retry_runs=retry_runs,
            memory=memory,
        )
        return App(Runner(graph, settings))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            refuse_attribute("StateGraph", name)


def _checkpoint(given: CheckpointConfig | None, store: object) -> CheckpointConfig:
    if given is None:
        return CheckpointConfig(store=store)
    if not isinstance(cast("object", given), CheckpointConfig):
        raise InvalidRequest(
            "checkpoint= takes CheckpointConfig(store=..., interval=...); to set only the store "
            "write store='memory://'"
        )
    if store is not None and given.store is not None:
        raise InvalidRequest("pass the store either as store= or in CheckpointConfig, not both")
    return given


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _open(
    given: str | Store | CheckpointStore | None, objects: str | ObjectStorage | None
) -> Store | None:
    if given is None:
        if objects is not None and not getattr(objects, "builds", False):
            raise InvalidRequest("objects= holds the large values of a store: set store=, too")
        return None
    if isinstance(given, str):
        return with_objects(find_store(given), objects)
    if isinstance(given, CheckpointStore):
        return with_objects(given.store, objects)
    require_store(given)
    return with_objects(given, objects)


def _place(given: object, objects: object) -> tuple[str, str] | None:
    if not isinstance(given, str) or given.startswith("memory:"):
        return None
    return (given, objects or "") if isinstance(objects, str | None) else None


def _open_shared_cache(objects: str | ObjectStorage | None) -> SharedCache | None:
    if objects is None or isinstance(objects, str) or not objects.builds:
        return None
    from milecastle.builds.cache import SharedCache

    return SharedCache(objects.url)


def _open_workspace(
    given: str | PathLike[str] | Workspace | None, graph: CompiledGraph
) -> Workspace | None:
    if given is None:
        return None
    from milecastle.builds.file_graph import problems_over_files
    from milecastle.builds.workspace import Workspace

    workspace = given if isinstance(given, Workspace) else Workspace(given)
    problems = problems_over_files(graph, workspace.root, workspace.path)
    if problems:
        suggestion = (
            "remove the files from its nodes (cache= works in every graph), or the workspace"
        )
        place = caller()
        raise DefinitionError([Problem("MC126", one, place, suggestion) for one in problems])
    return workspace


def _declared(
    function: Any,
    name: str,
    version: str,
    inputs: Paths,
    outputs: Paths,
    cache: Cache | None,
    run_on: RunOn | None,
) -> Any:
    from milecastle.builds.nodes import Cache, Files, as_paths, declare, files_of

    if not callable(function):
        raise TypeError(f"node {name!r} is not a function, so it cannot declare files or a cache")
    if run_on is not None:
        raise TypeError(f"node {name!r} has files or a cache, so it cannot have run_on=")
    if cache is not None and not isinstance(cast("object", cache), Cache):
        raise TypeError(f"cache= takes Cache(...), not {type(cache).__name__}")
    if files_of(function) is not None:
        raise TypeError(f"node {name!r} declares its files twice: here and on its function")
    declared = Files(
        inputs=as_paths(inputs), outputs=as_paths(outputs), cache=cache, version=version or None
    )
    return declare(function, declared)
