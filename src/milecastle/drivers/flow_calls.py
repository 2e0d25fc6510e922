"""Performing the calls of a flow, blocking: parts of ``gather`` run in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import sleep
from typing import Any, Final

from milecastle.engine.context import Context, current_task, running_task
from milecastle.engine.flow import (
    CallStep,
    FlowBranch,
    FlowPart,
    FlowRun,
    MakeCalls,
    PartOutcome,
    RecordCalls,
    Request,
    RunParts,
    UseStore,
    current_branch,
)
from milecastle.engine.pauses import Paused
from milecastle.engine.task_port import RunTaskPort
from milecastle.errors import InvalidRequest, NodeTimeout, StoreError

_MOST_PARTS: Final = 32
"""How many parts of a ``gather`` run at once in threads."""


def run_flow(
    context: Context, function: Callable[..., Any], given: Mapping[str, Any], most: int
) -> Any:
    run = begin_flow(context, most, is_async=False)
    run.perform = _Blocking(run).perform
    root = FlowBranch(run)
    token = current_branch.set(root)
    try:
        value = function(**given)
    except Paused:
        run.pause()
        raise
    finally:
        current_branch.reset(token)
    run.finish(root)
    return value


def begin_flow(context: Context, most: int, *, is_async: bool) -> FlowRun:
    running, port = running_task(), context.port
    if running is None or not isinstance(port, RunTaskPort):
        raise InvalidRequest("a flow runs in the process that drives its run")
    return FlowRun(running, port.call_log(context.data), most, is_async=is_async)


class _Blocking:
    def __init__(self, run: FlowRun) -> None:
        self._run = run
        self._lock = Lock()

    def perform(self, make: MakeCalls, _parts: Sequence[FlowPart] = ()) -> Any:
        calls = make(own_branch())
        outcome: Any = None
        error: BaseException | None = None
        while True:
            try:
                request = calls.send(outcome) if error is None else calls.throw(error)
            except StopIteration as stop:
                return stop.value
            outcome = error = None
            try:
                outcome = self._answer(request)
            except BaseException as raised:
                error = raised

    def _answer(self, request: Request) -> Any:
        match request:
            case CallStep():
                return _call_within(request.timeout, request)
            case RecordCalls():
                return self._record(request.note)
            case UseStore():
                services = self._run.log.services
                return services.call(request.function, *request.args) if services else None
            case RunParts():
                return self._run_parts(request)
            case _:
                return sleep(request.seconds)

    def _record(self, note: str) -> None:
        run = self._run
        with self._lock:  # results that come meanwhile are in the next batch
            batch = run.next_batch(note)
            if batch is None or run.log.services is None:
                return
            try:
                run.log.services.commit(batch)
            except StoreError as error:
                run.lost(error)
            run.saved(batch)

    def _run_parts(self, request: RunParts) -> list[PartOutcome]:
        def run(part: FlowPart, branch: FlowBranch) -> PartOutcome:
            current_branch.set(branch)
            try:
                return PartOutcome(self._run.ended(branch, part()))
            except BaseException as error:
                return PartOutcome(error=self._run.failed(branch, error))

        pairs = list(zip(request.parts, request.branches, strict=True))
        if len(pairs) == 1:
            return [copy_context().run(run, *pairs[0])]
        with ThreadPoolExecutor(max(1, min(len(pairs), _MOST_PARTS))) as pool:
            begin: list[Callable[[], PartOutcome]] = [
                partial(copy_context().run, partial(run, *pair)) for pair in pairs
            ]
            calls = [pool.submit(call) for call in begin]
            return [call.result() for call in calls]


def own_branch() -> FlowBranch:
    branch = current_branch.get()
    if branch is None:
        raise InvalidRequest("this call of a flow was awaited outside of it")
    return branch


def call_step(step: CallStep) -> Any:
    current_task.set(step.running)
    current_branch.set(None)
    return step.function(*step.args, **step.named)


def _call_within(seconds: float | None, step: CallStep) -> Any:
    """Call a step's function; one that is out of time is left to its thread."""
    call: Callable[[], Any] = partial(copy_context().run, partial(call_step, step))
    if seconds is None:
        value: Any = call()
    else:
        ended: SimpleQueue[PartOutcome] = SimpleQueue()
        work = partial(_put_outcome, ended, call)
        Thread(target=work, name="milecastle-timed", daemon=True).start()
        try:
            found = ended.get(timeout=seconds)
        except Empty:
            raise out_of_time(step, seconds) from None
        if found.error is not None:
            raise found.error
        value = found.value
    if hasattr(value, "__await__"):
        value.close()
        raise InvalidRequest("a flow that calls an async step is async, too: async def")
    return value


def _put_outcome(ended: SimpleQueue[PartOutcome], call: Callable[[], Any]) -> None:
    try:
        ended.put(PartOutcome(call()))
    except BaseException as error:
        ended.put(PartOutcome(error=error))


def out_of_time(step: CallStep, seconds: float) -> NodeTimeout:
    return NodeTimeout(node=step.running.task.node, seconds=seconds)
