"""What an app tells and changes of its threads outside of a run: look, branch off, compare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec.structs

from milecastle.app.answering import NOTHING_GIVEN, Given, refuse_refused
from milecastle.app.calls import take_page
from milecastle.app.children import children_of, refuse_mark
from milecastle.app.difference import Change, difference
from milecastle.app.fitting import Fit
from milecastle.app.following import Follower
from milecastle.app.habits import refuse_thread
from milecastle.app.keyring import Keyring
from milecastle.app.migrating import Migrate, Migration, foresee
from milecastle.app.results import Result, Snapshot
from milecastle.app.starting import interrupts_at
from milecastle.app.threads import At, Threads
from milecastle.engine.plan import Ending
from milecastle.errors import InvalidRequest
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import CheckpointMetadata, to_datetime
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.ports.clock import Clock
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.portable import FilePath, PortableFiles

__all__ = ["Thread", "ThreadCalls"]

S = TypeVar("S")
T = TypeVar("T")

Thread = str | ThreadKey


class ThreadCalls(Generic[S]):
    """The calls of an app that run no node. Whatever may wait for a store is kept off the loop."""

    def __init__(
        self,
        graph: CompiledGraph,
        store: Store | None,
        tenant: str,
        clock: Clock,
        encryption: Keyring | None,
        checkpoint_dir: FilePath | None,
        signing_key: bytes | str | None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._tenant = tenant
        self._clock = clock
        self._encryption = encryption
        self._checkpoint_dir, self._signing_key = checkpoint_dir, signing_key
        self._threads = Threads(graph, store, clock, encryption) if store else None
        self._migrations: dict[str, Migration] = {}
        self._use_migrations(self._migrations)

    @property
    def graph(self) -> CompiledGraph:
        """The graph that this app runs."""
        return self._graph

    @property
    def store(self) -> Store | None:
        """Where threads are kept; ``None`` if nothing is saved."""
        return self._store

    @property
    def tenant(self) -> str:
        """Whose threads are meant where only their names are given."""
        return self._tenant

    @property
    def encryption(self) -> Keyring | None:
        """What encrypts the threads; ``None`` if they are kept as they are."""
        return self._encryption

    @property
    def fingerprint(self) -> str:
        """The hash of the graph's structure: equal in every process and on every Python."""
        return self._graph.fingerprint

    def state(self, thread: Thread, at: At = None) -> Snapshot[S]:
        """The state of a thread at its head, or at a checkpoint given by seq or id."""
        threads, key = self._stored(thread)
        position, entry = threads.existing(key, at)
        known = CheckpointMetadata.of(key, entry)
        status, record = threads.status(key, entry), threads.record(key, entry)
        return Snapshot(
            **msgspec.structs.asdict(known),
            state=self._graph.schema.present(position.values),
            status=status,
            metadata=record.metadata,
            interrupts=interrupts_at(position, status),
            wake_at=None if record.wake_at is None else to_datetime(record.wake_at),
        )

    async def astate(self, thread: Thread, at: At = None) -> Snapshot[S]:
        """``state`` on an event loop."""
        return await self._off_loop(self.state, thread, at)

    def history(
        self, thread: Thread, limit: int | None = None, *, subgraphs: bool = False
    ) -> Iterator[CheckpointMetadata]:
        """The thread's checkpoints, newest first. No state is decoded.

        With ``subgraphs`` those of its subgraphs stand among them, by time.
        """
        threads, key = self._stored(thread)
        if not subgraphs:
            return threads.history(key, limit)
        keys = [key, *(child.key for child in children_of(threads.store, key))]
        found = merge(
            *(threads.history(each, limit) for each in keys),
            key=lambda known: known.timestamp,
            reverse=True,
        )
        return islice(found, limit)

    async def ahistory(
        self, thread: Thread, limit: int | None = None, *, subgraphs: bool = False
    ) -> AsyncIterator[CheckpointMetadata]:
        """``history`` on an event loop."""
        found = self.history(thread, limit, subgraphs=subgraphs)
        page = await self._off_loop(take_page, found)
        while page:
            for known in page:
                yield known
            page = await self._off_loop(take_page, found)

    def follow(self, thread: Thread, *, after: int = 0, poll: float = 0.2) -> Iterator[Event]:
        """The states of a thread from a seq on, then those to come, until it is at rest.

        Whoever runs the thread may be another process. ``poll`` is how often to look, in seconds.
        """
        from time import sleep

        threads, key = self._stored(thread)
        follower = Follower(threads, key, after)
        while True:
            over, found = follower.look()
            yield from found
            if not found:
                if over:
                    return
                sleep(poll)

    async def afollow(
        self, thread: Thread, *, after: int = 0, poll: float = 0.2
    ) -> AsyncIterator[Event]:
        """``follow`` on an event loop."""
        import asyncio

        threads, key = self._stored(thread)
        follower = Follower(threads, key, after)
        while True:
            over, found = await self._off_loop(follower.look)
            for event in found:
                yield event
            if not found:
                if over:
                    return
                await asyncio.sleep(poll)

    def migrate(
        self, from_fingerprint: str, function: Migrate, *, types: Iterable[type] = ()
    ) -> None:
        """Bring threads of an older graph over when they are next gone on with.

        ``function`` is given the state, as a dict, and the names of the nodes to run next, as that
        graph left them; it returns both as this graph should find them. ``types`` are those of
        the old state that this one does not have any more. The history notes the migration.
        """
        self._migrations[from_fingerprint] = Migration(function, tuple(types))

    def fit(self, thread: Thread) -> Fit:
        """Whether a thread would go on with this graph: every reason against, or what changed.

        Registered migrations count. Nothing is changed, and no state is decoded.
        """
        threads, key = self._stored(thread)
        head = next(iter(threads.store.history(key, limit=1)), None)
        if head is None:
            raise InvalidRequest(f"thread '{key.thread}' has no checkpoints")
        return foresee(threads, key, head)

    def update_state(
        self, thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        """Append a checkpoint with an update on top of the head, or branching off an older one.

        What runs next stays as it was there.
        """
        threads, key = self._stored(thread)
        return threads.update(key, update, at)

    async def aupdate_state(
        self, thread: Thread, update: Mapping[str, Any], at: At = None
    ) -> CheckpointMetadata:
        """``update_state`` on an event loop."""
        return await self._off_loop(self.update_state, thread, update, at)

    def fork(self, thread: Thread, at: At, as_thread: Thread | None = None) -> CheckpointMetadata:
        """Go back to a checkpoint: the thread's head is then a branch from there.

        With ``as_thread`` the branch is a thread of its own and this one stays as it is.
        """
        threads, key = self._stored(thread)
        return threads.fork(key, at, None if as_thread is None else self._key(as_thread))

    async def afork(
        self, thread: Thread, at: At, as_thread: Thread | None = None
    ) -> CheckpointMetadata:
        """``fork`` on an event loop."""
        return await self._off_loop(self.fork, thread, at, as_thread)

    def diff(self, thread: Thread, a: At, b: At = None) -> list[Change]:
        """What is different between two checkpoints of a thread, by path."""
        threads, key = self._stored(thread)
        return difference(threads.existing(key, a)[0].values, threads.existing(key, b)[0].values)

    async def adiff(self, thread: Thread, a: At, b: At = None) -> list[Change]:
        """``diff`` on an event loop."""
        return await self._off_loop(self.diff, thread, a, b)

    def save_checkpoint(self, path: FilePath, state: Any, node: str, config: Any = None) -> None:
        """Save a state, the node that is to run on it and its config in a portable file."""
        self._files().save(path, state, node, config)

    def load_checkpoint(self, path: FilePath) -> dict[str, Any]:
        """What a portable file holds: ``state``, ``node``, ``config``, ``timestamp``, ``version``.

        Nothing in the file is run. ``results`` is there too if it was saved at a fan-in.
        """
        return self._files().load(path)

    def draw(self, form: str = "mermaid") -> str:
        """The graph as ``"mermaid"``, ``"svg"`` or ``"text"``, without any network."""
        from milecastle.graph.draw import draw_mermaid, draw_svg, draw_text

        drawers = {"mermaid": draw_mermaid, "svg": draw_svg, "text": draw_text}
        if form not in drawers:
            raise InvalidRequest(f"there is no drawing {form!r}; use 'mermaid', 'svg' or 'text'")
        return drawers[form](self._graph.manifest, title=self._graph.name)

    def _repr_svg_(self) -> str:
        return self.draw("svg")

    def _repr_html_(self) -> str:
        return self.draw("svg")

    def _files(self) -> PortableFiles:
        from milecastle.app.portable import PortableFiles

        key, folder = self._signing_key, self._checkpoint_dir
        return PortableFiles(self._graph, self._clock, folder=folder, signing_key=key)

    def _result(
        self, run_id: str, key: ThreadKey | None, ending: Ending, given: Given = NOTHING_GIVEN
    ) -> Result[S]:
        refuse_refused(key.thread if key else "", given, ending.interrupts)
        return Result(
            state=self._graph.schema.present(ending.values),
            status=ending.status,
            run_id=run_id,
            thread=key,
            nodes=ending.nodes,
            next=ending.next,
            step=ending.step,
            timestamp=to_datetime(ending.time),
            interrupts=ending.interrupts,
            wake_at=None if ending.wake_at is None else to_datetime(ending.wake_at),
        )

    def _key(self, thread: Thread) -> ThreadKey:
        if isinstance(thread, ThreadKey):
            return thread
        if type(thread) is not str:
            return refuse_thread(thread)
        refuse_mark(thread)
        return ThreadKey(self._tenant, thread)

    def _stored(self, thread: Thread) -> tuple[Threads, ThreadKey]:
        if self._threads is None:
            raise InvalidRequest("this app has no store, so it has no threads: compile(store=...)")
        return self._threads, self._key(thread)

    def _use_migrations(self, migrations: dict[str, Migration]) -> None:
        """Share what is registered: with the threads here, and with an app made of this one."""
        self._migrations = migrations
        if self._threads is not None:
            self._threads.migrations = migrations

    async def _off_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that may wait for the store."""
        if self._store is None or not (self._store.blocking or self._encryption):
            return function(*args)
        import asyncio

        return await asyncio.to_thread(function, *args)
