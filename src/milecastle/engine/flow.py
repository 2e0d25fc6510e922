"""A flow's run: its function calls, and each call's result is recorded.

Rules:

- A call's id is its number on its branch. Each part of ``gather`` and ``first`` is a branch of its
  own, so ids do not depend on which part is faster: ``4``, and in the second part of it ``4.1.1``.
- A recorded call must have the same kind and name, and no call may come before it that was not
  recorded. Otherwise the flow is refused, and nothing is written.
- The result of a step is committed before the flow continues. Everything found again
  without a record (answers, messages, passed times, caught failures) is in the next entry.
- A failure is recorded once the flow has made another call: so it was caught. A run that fails with
  it calls again when it is retried.

Each call is a generator: it yields requests, which ``drivers/flow_calls.py`` performs, blocking or
on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import msgspec.structs

from milecastle.engine.calls import FAILED, LATE, OPEN, CallLog, NewCall, RecordedCall, shown
from milecastle.engine.context import Context, RunningTask, read_time, seconds_of
from milecastle.engine.pauses import FlowStopped, Paused, PausedFlow, Released, StepRefused
from milecastle.errors import (
    InvalidAnswer,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
    StepFailed,
    TimedOut,
)
from milecastle.graph.structure import PLAIN, NodePolicy
from milecastle.model.checkpoint import to_datetime
from milecastle.model.children import ChildResult, child_topic
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import own_name
from milecastle.model.message import Message, check_topic
from milecastle.ports.store import Batch
from milecastle.ports.task import MISSING, NewChild

FlowPart = Any
"""A function of ``gather`` or ``first``, or an awaitable."""


class CallStep(NamedTuple):
    running: RunningTask
    function: Callable[..., Any]
    args: Sequence[Any]
    named: Mapping[str, Any]
    timeout: float | None


class Delay(NamedTuple):
    seconds: float


class UseStore(NamedTuple):
    function: Callable[..., Any]
    args: Sequence[Any]


class RecordCalls(NamedTuple):
    note: str


class RunParts(NamedTuple):
    """Request: run parts beside each other, each on its branch; return their outcomes."""

    parts: Sequence[FlowPart]
    branches: Sequence[FlowBranch]


class PartOutcome(NamedTuple):
    value: Any = None
    error: BaseException | None = None


Request = CallStep | Delay | UseStore | RecordCalls | RunParts
Calls = Generator[Request, Any, Any]
MakeCalls = Callable[["FlowBranch"], Calls]
"""Begins a call on the branch it is made on."""


class FlowBranch:
    __slots__ = ("busy", "count", "failed", "flow", "parent", "prefix")

    def __init__(self, flow: FlowRun, prefix: str = "", parent: FlowBranch | None = None) -> None:
        self.flow = flow
        self.prefix = prefix
        self.parent = parent
        self.count = 0
        self.busy = ""
        self.failed: list[NewCall] = []

    @property
    def next_id(self) -> str:
        return f"{self.prefix}{self.count + 1}"


current_branch: ContextVar[FlowBranch | None] = ContextVar("milecastle_branch", default=None)
"""The branch that this code is part of; ``None`` outside of flows, and inside a step."""

_NOTHING: Final = RecordedCall("", "", "")


class FlowRun:
    perform: Callable[[MakeCalls, Sequence[FlowPart]], Any]

    def __init__(self, running: RunningTask, log: CallLog, most: int, *, is_async: bool) -> None:
        context = running.context
        self.is_async = is_async
        self.running = running
        self.name = context.node
        self.log = log
        self.most = most
        self.stopped: BaseException | None = None
        self.known = {call.id: call for call in log.recorded()}
        self.new = log.ended_waits(self.known)
        for one in self.new:
            self.known[one.record[0]] = RecordedCall(*one.record)
        self.calls = len(self.known)
        self.context: Context = context
        context.flow = self

    # ---- what was recorded

    def check(self) -> None:
        if self.stopped is not None:
            raise self.stopped
        if not self.log.is_running():
            raise Released
        if self.log.services is not None:
            self.log.services.check()

    def _enter(self, branch: FlowBranch, kind: str, name: str) -> tuple[str, RecordedCall]:
        self.check()
        if branch.busy:
            raise InvalidRequest(
                f"{shown(kind, name)} was called in flow '{self.name}' while {branch.busy} runs: "
                "use gather() for calls beside each other"
            )
        if branch.failed:
            self.new += branch.failed
            branch.failed = []
        branch.count += 1
        id = f"{branch.prefix}{branch.count}"
        found = self.known.get(id)
        if found is None:
            if (passed := self._passed(branch.parent)) is not None:
                self._differ(
                    f"call {passed.id} was {passed}, and before it the code now makes call {id}, "
                    f"{shown(kind, name)}"
                )
            if self.calls >= self.most:
                raise InvalidRequest(
                    f"flow '{self.name}' has made more than {self.most} calls: return again(...) "
                    "starts it anew with new arguments, or set flow(max_calls=...)"
                )
            self.calls += 1
            self.log.begin(id, shown(kind, name))
            return id, _NOTHING
        if found.kind != kind or found.name != name:
            was = "waits in" if found.how == OPEN else "was"
            self._differ(f"call {id} {was} {found}, and the code now makes {shown(kind, name)}")
        return id, found

    def _passed(self, branch: FlowBranch | None) -> RecordedCall | None:
        """A recorded call after a branch's present one: the flow has been past that one."""
        while branch is not None:
            if (found := self.known.get(branch.next_id)) is not None:
                return found
            branch = branch.parent
        return None

    def _differ(self, what: str) -> NoReturn:
        refused = ResumeRefused(
            self.log.thread,
            [f"in flow '{self.name}' {what}"],
            advice="run it with the code it began with, or guard new calls with changed('name')",
        )
        self.stopped = FlowStopped(refused, differs=True)
        raise self.stopped

    def ended(self, branch: FlowBranch, value: Any) -> Any:
        self.end_branch(branch)
        return value

    def failed(self, branch: FlowBranch, error: BaseException) -> BaseException:
        """A failed part's outcome: it may have left out recorded calls before."""
        if isinstance(error, Exception):
            try:
                self.end_branch(branch)
            except FlowStopped as stopped:
                return stopped
        return error

    def end_branch(self, branch: FlowBranch) -> None:
        """A branch's code has ended: it must have made every recorded call."""
        left = self.known.get(branch.next_id)
        if left is not None:
            self._differ(f"call {left.id} was {left}, and the code ends without it")

    def _read(self, call: RecordedCall) -> Any:
        if call.how == FAILED:
            raise StepFailed(call.name, *call.value)
        try:
            return self.log.decode(call.value)
        except MilecastleError as error:
            raise FlowStopped(error) from error

    def _add(self, id: str, kind: str, name: str, value: Any) -> None:
        self.new.append(NewCall([id, kind, name, self.log.encode(value)]))

    # ---- recording

    def take_new(self) -> list[NewCall]:
        taken = list(self.new)  # other threads may add to it meanwhile
        del self.new[: len(taken)]
        return taken

    def next_batch(self, note: str) -> Batch | None:
        """The next entry's batch; ``None`` if another has the new records by now."""
        self.check()
        taken = self.take_new()
        return self.log.batch(taken, self.name, note) if taken else None

    def saved(self, batch: Batch) -> None:
        self.log.saved(batch)
        if self.log.is_released:
            self.stopped = Released()
            raise self.stopped

    def lost(self, error: MilecastleError) -> NoReturn:
        self.stopped = FlowStopped(error)
        raise self.stopped from error

    def pause(self) -> None:
        """Let the entry with which the flow stops have the unrecorded results."""
        self.log.note(self.take_new())

    def finish(self, root: FlowBranch) -> None:
        self.end_branch(root)
        self.log.end(self.take_new())

    # ---- steps

    def step(
        self,
        branch: FlowBranch,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
        policy: NodePolicy = PLAIN,
    ) -> Calls:
        id, found = self._enter(branch, "step", name)
        if found is not _NOTHING:
            if found.how == FAILED:
                branch.failed = []
            return self._read(found)
        timeout = policy.timeout.run if policy.timeout and not policy.run_on else None
        attempt = 1
        branch.busy = f"step '{name}'"
        try:
            while True:
                running = self._running(id, attempt)
                try:
                    value = yield CallStep(running, function, args, named, timeout)
                    break
                except StepRefused as refused:
                    raise refused.error from None
                except Exception as error:
                    retry = policy.attempts
                    if retry is None or attempt >= retry.attempts or not policy.is_retried(error):
                        how = type(error).__qualname__, str(error)
                        branch.failed = [NewCall([id, "step", name, [*how], FAILED])]
                        raise StepFailed(name, *how) from error
                    due = retry.next_at(0, attempt, f"{self.context.run_id}/{id}/{attempt}")
                    yield Delay(due / 1_000_000)
                    self.check()
                    attempt += 1
                finally:
                    running.end()
            record = [id, "step", name, self.log.encode(value)]
            self.new.append(NewCall(record, memory=self.log.remembered(running.task)))
            yield RecordCalls(f"{id} {name}")
        finally:
            branch.busy = ""
        return value

    def _running(self, id: str, attempt: int) -> RunningTask:
        """The call as a task: its context has its own idempotency key."""
        own = self.running
        task = msgspec.structs.replace(own.task, id=f"{own.task.id}.{id}", attempt=attempt, call=id)
        return RunningTask(task, own.place, own.node)

    # ---- waits

    def _stop(
        self,
        id: str,
        kind: str,
        name: str,
        until: int | None,
        question: Interrupt | None = None,
        topics: Sequence[str] = (),
    ) -> NoReturn:
        known = self.known.get(id)
        if known is None or known.how != OPEN or known.value != until:
            self.new.append(NewCall([id, kind, name, until, OPEN]))
        pairs = tuple((topic, 0) for topic in topics)  # the run fills in the numbers
        raise Paused(self._label(id), question, until, pairs)

    def _label(self, id: str) -> str:
        return f"{self.context.task}/{id}"

    def _deadline(self, found: RecordedCall, seconds: float | None) -> int | None:
        if found.how == OPEN:
            until: int | None = found.value
            return until
        return None if seconds is None else self.log.now() + round(seconds * 1_000_000)

    def sleep(self, branch: FlowBranch, until: datetime | timedelta | float) -> None:
        id, found = self._enter(branch, "sleep", "")
        if found is not _NOTHING and found.how != OPEN:
            return
        now = self.log.now()
        if found.how == OPEN:
            ends: int = found.value
        else:
            moment, seconds = read_time(until, "sleep()")
            ends = now + round(seconds * 1_000_000) if moment is None else moment
        if ends > now:
            self._stop(id, "sleep", "", ends)
        self._add(id, "sleep", "", None)

    def ask(
        self,
        question: Any,
        show: Any,
        answer: Any,
        within: timedelta | float | None,
        otherwise: Any,
    ) -> Any:
        from milecastle.codec.answers import as_plain, deliver, schema_of

        plain, branch = as_plain(question), current_branch.get()
        if branch is None:
            raise InvalidRequest("interrupt() was called inside a step: ask in the flow itself")
        name = plain if isinstance(plain, str) else ""
        id, found = self._enter(branch, "interrupt", name)
        refused = None
        if found is not _NOTHING and found.how != OPEN:
            if found.how == LATE:
                return self._late(found, otherwise, "nothing")
            try:
                return deliver(self._read(found), answer)
            except InvalidAnswer as error:
                refused = error.message
        asked = Interrupt(
            id=self._label(id),
            node=self.name,
            question=plain,
            show=as_plain(show),
            answer=schema_of(answer),
            asks=True,
            refused=refused,
        )
        until = self._deadline(found, seconds_of(within, "within="))
        return self._stop(id, "interrupt", name, until, asked)

    def _late(self, found: RecordedCall, default: Any, what: str) -> Any:
        if default is MISSING:
            raise TimedOut(node=self.name, deadline=to_datetime(found.value), what=what)
        return default

    def receive(
        self,
        branch: FlowBranch,
        topics: Sequence[str],
        *,
        is_one: bool,
        wanted: Any,
        timeout: float | timedelta | None,
        default: Any,
    ) -> Calls:
        if not topics:
            raise InvalidRequest("receive() needs a topic")
        for topic in topics:
            check_topic(topic)
        name, what = ", ".join(topics), f"no message of topic {', '.join(map(repr, topics))}"
        message = yield from self._receive(branch, "receive", name, topics, timeout)
        if isinstance(message, RecordedCall):
            return self._late(message, default, what)
        value = message.value
        if wanted is not None:
            from milecastle.codec.answers import read_message

            what = f"message {message.number}, of topic {message.topic!r},"
            value = read_message(value, wanted, what)
        return value if is_one else msgspec.structs.replace(message, value=value)

    def join(self, branch: FlowBranch, child: str, timeout: float | timedelta | None) -> Calls:
        topics = (child_topic(child),)
        found = yield from self._receive(branch, "join", child, topics, timeout)
        if isinstance(found, RecordedCall):
            return self._late(found, MISSING, f"no end of child '{child}'")
        return ChildResult(thread=child, **found.value)

    def _receive(
        self,
        branch: FlowBranch,
        kind: str,
        name: str,
        topics: Sequence[str],
        timeout: float | timedelta | None,
    ) -> Generator[Request, Any, Message | RecordedCall]:
        if self.context.data.run.path:
            raise InvalidRequest(
                f"flow '{self.name}' is a subgraph, and messages are sent to the thread of the "
                "whole graph: receive them in a node of that, and pass them in the state"
            )
        id, found = self._enter(branch, kind, name)
        if found.how == LATE:
            return found
        if found is not _NOTHING and found.how != OPEN:
            return Message(**self._read(found))
        until = self._deadline(found, seconds_of(timeout, "timeout="))
        branch.busy = shown(kind, name)
        try:
            message: Message | None = yield UseStore(self.log.next_message, (topics,))
        finally:
            branch.busy = ""
        if message is None:
            self._stop(id, kind, name, until, topics=topics)
        if self.log.services is not None and message.carried:
            self.log.services.message_received(self.context.run_id, message.carried)
        value = {
            "number": message.number,
            "topic": message.topic,
            "value": message.value,
            "key": message.key,
            "by": message.by,
            "sent_at": message.sent_at,
        }
        record = [id, kind, name, self.log.encode(value)]
        self.new.append(NewCall(record, message.number))
        return message

    # ---- children

    def spawn(
        self,
        branch: FlowBranch,
        app: Any,
        input: Any,
        thread: str | None,
        *,
        config: Any,
        on_cancel: str,
    ) -> Calls:
        if on_cancel not in ("cancel", "leave"):
            raise InvalidRequest("on_cancel= takes 'cancel' or 'leave'")
        if self.context.data.run.path:
            raise InvalidRequest(
                f"flow '{self.name}' is a subgraph, and children belong to the thread of the "
                "whole graph: spawn and join them in a node of that"
            )
        name = app if isinstance(app, str) else str(app.graph.name)
        id, found = self._enter(branch, "spawn", name)
        if found is not _NOTHING:
            return self._read(found)
        key = self._running(id, 1).context.idempotency_key
        own = self.log.thread.removeprefix(own_name("child", ""))[:40]
        named = thread or own_name("child", f"{own}/{self.name[:20]}.{id}-{key[:16]}")
        stays, is_own = on_cancel == "leave", thread is None
        child = NewChild(named, input, config, f"{key}/0", stays, is_own)
        branch.busy = shown("spawn", name)
        try:
            yield UseStore(self.context.port.spawn, (self.context.data, app, [child]))
        finally:
            branch.busy = ""
        self._add(id, "spawn", name, named)
        return named

    # ---- parts

    def gather(self, branch: FlowBranch, parts: Sequence[FlowPart]) -> Calls:
        kind, name = "gather", f"{len(parts)} parts"
        id, found = self._enter(branch, kind, name)
        if found is _NOTHING:
            self.new.append(NewCall([id, kind, name, None]))
        wanted: Sequence[int] = [found.value] if found.how == FAILED else range(len(parts))
        branches = [FlowBranch(self, f"{id}.{number}.", branch) for number in wanted]
        branch.busy = kind
        try:
            outcomes = yield RunParts([parts[number] for number in wanted], branches)
        finally:
            branch.busy = ""
        errors = [outcome.error for outcome in outcomes]
        _raise_signal(errors)
        for number, own, error in zip(wanted, branches, errors, strict=True):
            if isinstance(error, Exception):
                branch.failed = [*own.failed, NewCall([id, kind, name, number, FAILED])]
                raise error
        if found.how == FAILED:
            self._differ(f"call {id} was {found}, which failed, and the code now continues")
        _raise_pauses(errors)
        for own in branches:
            self.new += own.failed
        return [outcome.value for outcome in outcomes]

    def first(self, branch: FlowBranch, parts: Sequence[FlowPart]) -> Calls:
        if not parts:
            raise InvalidRequest("first() needs at least one part")
        kind, name = "first", f"{len(parts)} parts"
        id, found = self._enter(branch, kind, name)
        if found is _NOTHING:
            self.new.append(NewCall([id, kind, name, None, OPEN]))
        is_decided = found is not _NOTHING and found.how != OPEN
        waits: list[BaseException | None] = []
        for number in [found.value] if is_decided else range(len(parts)):
            own = FlowBranch(self, f"{id}.{number}.", branch)
            branch.busy = kind
            try:
                [outcome] = yield RunParts([parts[number]], [own])
            finally:
                branch.busy = ""
            _raise_signal([outcome.error])
            if isinstance(outcome.error, Paused):
                waits.append(outcome.error)
                continue
            decided = [] if is_decided else [NewCall([id, kind, name, number])]
            if outcome.error is not None:
                branch.failed = [*own.failed, *decided]
                raise outcome.error
            self.new += [*own.failed, *decided]
            return number, outcome.value
        return _raise_pauses(waits)  # each part waits

    # ---- values found again

    def now(self, branch: FlowBranch) -> datetime:
        id, found = self._enter(branch, "now", "")
        if found is _NOTHING:
            found = RecordedCall(id, "now", "", self.log.now())
            self.new.append(NewCall([*found[:4]]))
        return to_datetime(found.value)

    def new_id(self, branch: FlowBranch) -> str:
        id, found = self._enter(branch, "new_id", "")
        if found is _NOTHING:
            self.new.append(NewCall([id, "new_id", "", None]))
        return self._running(id, 1).context.idempotency_key

    def changed(self, branch: FlowBranch, name: str) -> bool:
        self.check()
        id = f"{branch.prefix}?{name}"
        if id in self.known:
            return True
        if self._passed(branch) is not None:
            return False
        self.known[id] = RecordedCall(id, "changed", name)
        self.new.append(NewCall([id, "changed", name, None]))
        return True


def _raise_signal(errors: Sequence[BaseException | None]) -> None:
    """Raise what ends the flow, whatever its other parts do."""
    for error in errors:
        if error is not None and not isinstance(error, Exception | Paused):
            raise error


def _raise_pauses(errors: Sequence[BaseException | None]) -> None:
    pauses = [one for error in errors if isinstance(error, Paused) for one in error.each]
    if pauses:
        raise PausedFlow(pauses)
