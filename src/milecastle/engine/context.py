"""What a node may ask of the run that it is part of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

import msgspec

from milecastle.engine.asking import Asked
from milecastle.errors import InvalidAnswer, InvalidRequest
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey

if TYPE_CHECKING:
    from milecastle.engine.desk import Desk

__all__ = ["MISSING", "Context", "Origin"]

T = TypeVar("T")

MISSING: Final = object()
"""What is not on record."""


class Origin(msgspec.Struct, frozen=True):
    """Where a state came from: the run and the nodes that produced it, and when."""

    run_id: str
    nodes: tuple[str, ...]
    timestamp: datetime


class Context(msgspec.Struct, kw_only=True, eq=False):
    """Injected into a node that has a parameter named ``ctx``.

    ``origin`` tells where the state that the node received came from. ``thread`` is ``None``
    without a store. ``attempt`` counts from 1. ``failures`` tells a node that runs ``on_error``
    what failed: the names of the nodes, each with the type and the message of its error.
    """

    run_id: str
    node: str
    task: str
    step: int
    thread: ThreadKey | None
    config: Any
    attempt: int
    origin: Origin
    failures: Mapping[str, Any]
    desk: Desk
    questions: int = 0
    sleeps: int = 0
    beat: float = 0.0
    over: bool = False

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task, and different for every other.

        Give it to a service that can refuse to do a thing twice.
        """
        from hashlib import sha256

        where = (self.thread.tenant, self.thread.thread) if self.thread else (self.run_id, "")
        parts = (*where, str(self.desk.settled), str(self.step), self.task)
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def once(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call ``function`` and record its result; once it is recorded, return that instead.

        Not repeated by a retry, by a resume after an interrupt, or by a takeover. The name is
        one of this task: use another for each thing to be done.
        """
        self._refuse_if_over()
        found = self.desk.recorded(self.task, name)
        if found is not MISSING:
            return cast("T", found)
        value = function(*args, **named)
        if hasattr(value, "__await__"):
            cast("Any", value).close()
            raise InvalidRequest(f"'{name}' is async: write await ctx.aonce({name!r}, ...)")
        self._refuse_if_over()
        self.desk.record(self.task, name, value)
        return value

    @overload
    async def aonce(
        self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **named: Any
    ) -> T: ...
    @overload
    async def aonce(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T: ...
    async def aonce(self, name: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """``once`` for async nodes; ``function`` may be async or not."""
        self._refuse_if_over()
        found = self.desk.recorded(self.task, name)
        if found is not MISSING:
            return found
        value: Any = function(*args, **named)
        if hasattr(value, "__await__"):
            value = await value
        self._refuse_if_over()
        await self.desk.arecord(self.task, name, value)
        return value

    def transaction(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """``once``, exactly: what ``function`` writes and its record are committed together.

        On PostgreSQL. ``function`` is called with a connection of the store as its first argument,
        inside a transaction: its own rows and the record are there together, or neither is.
        """
        self._refuse_if_over()
        found = self.desk.recorded(self.task, name)
        if found is not MISSING:
            return cast("T", found)
        return cast(
            "T",
            self.desk.transact(
                self.task, name, lambda connection: function(connection, *args, **named)
            ),
        )

    def emit(self, value: Any) -> None:
        """Tell a value to who reads the stream, now. In an async node prefer ``await aemit``."""
        self._refuse_if_over()
        self.desk.emit(self, value)

    async def aemit(self, value: Any) -> None:
        """``emit``, waiting without stopping the loop until the reader has caught up."""
        self._refuse_if_over()
        await self.desk.aemit(self, value)

    def heartbeat(self) -> None:
        """Say that the node is still at work, for ``Timeout(idle=...)``."""
        from time import monotonic

        self._refuse_if_over()
        self.beat = monotonic()

    def sleep(self, until: datetime | timedelta | float) -> None:
        """Let the run rest until a time, or for a while; it takes no process while it does.

        The run ends with the status ``sleeping``. When it is resumed the node runs again from
        its top, and this call returns.
        """
        number, self.sleeps = self.sleeps, self.sleeps + 1
        if isinstance(until, datetime):
            if until.tzinfo is None:
                raise InvalidRequest("ctx.sleep() takes a datetime with a time zone")
            moment = until.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            self.desk.sleep(self, number, moment // timedelta(microseconds=1), 0)
        else:
            seconds = until.total_seconds() if isinstance(until, timedelta) else until
            self.desk.sleep(self, number, None, seconds)

    def ask(self, question: Any, show: Any, answer: Any) -> Any:
        """What ``interrupt()`` does."""
        from milecastle.codec.answers import as_plain, deliver, schema_of

        number, self.questions = self.questions, self.questions + 1
        found = Interrupt(
            id=f"{self.task}/{number}",
            node=self.node,
            question=as_plain(question),
            show=as_plain(show),
            answer=schema_of(answer),
            asks=True,
        )
        given = self.desk.answer(found.id)
        if given is MISSING:
            raise Asked(found)
        try:
            return deliver(given, answer)
        except InvalidAnswer as error:
            raise Asked(msgspec.structs.replace(found, refused=error.message)) from None

    def _refuse_if_over(self) -> None:
        if self.over:
            raise InvalidRequest(
                f"node '{self.node}' is over (it timed out, or was cancelled) and its code still "
                "runs: nothing more is recorded for it"
            )
