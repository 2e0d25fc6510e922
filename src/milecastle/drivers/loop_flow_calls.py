"""Performing a flow's calls on an event loop.

Parts of ``gather`` are tasks on the loop. A plain function as a step runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

from milecastle.drivers.flow_calls import begin_flow, call_step, out_of_time, own_branch
from milecastle.drivers.loop_tasks import call_in_own_thread
from milecastle.engine.context import Context, current_task
from milecastle.engine.flow import (
    Calls,
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
from milecastle.errors import StoreError
from milecastle.graph.functions import is_async


async def arun_flow(
    context: Context, function: Callable[..., Any], given: Mapping[str, Any], most: int
) -> Any:
    run = begin_flow(context, most, is_async=True)
    run.perform = _OnLoop(run).perform
    root = FlowBranch(run)
    token = current_branch.set(root)
    try:
        value = await function(**given)
    except Paused:
        run.pause()
        raise
    finally:
        current_branch.reset(token)
    run.finish(root)
    return value


class _OnLoop:
    def __init__(self, run: FlowRun) -> None:
        self._run = run
        self._lock = asyncio.Lock()

    async def perform(self, make: MakeCalls, parts: Sequence[FlowPart] = ()) -> Any:
        """Perform a call; coroutines among its ``parts`` that it does not await are closed."""
        try:
            return await self._perform(make(own_branch()))
        finally:
            for part in parts:
                if asyncio.iscoroutine(part) and getcoroutinestate(part) == CORO_CREATED:
                    part.close()

    async def _perform(self, calls: Calls) -> Any:
        outcome: Any = None
        error: BaseException | None = None
        while True:
            try:
                request = calls.send(outcome) if error is None else calls.throw(error)
            except StopIteration as stop:
                return stop.value
            outcome = error = None
            try:
                outcome = await self._answer(request)
            except BaseException as raised:
                error = raised

    async def _answer(self, request: Request) -> Any:
        match request:
            case CallStep():
                return await _await_within(request.timeout, request)
            case RecordCalls():
                return await self._record(request.note)
            case UseStore():
                services = self._run.log.services
                return await services.acall(request.function, *request.args) if services else None
            case RunParts():
                return await self._run_parts(request)
            case _:
                return await asyncio.sleep(request.seconds)

    async def _record(self, note: str) -> None:
        run = self._run
        async with self._lock:  # results that come meanwhile are in the next batch
            batch = run.next_batch(note)
            if batch is None or run.log.services is None:
                return
            writing = asyncio.ensure_future(run.log.services.acommit(batch))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait([writing])
                if not writing.cancelled() and writing.exception() is None:
                    run.log.saved(batch)
                raise
            except StoreError as error:
                run.lost(error)
            run.saved(batch)

    async def _run_parts(self, request: RunParts) -> list[PartOutcome]:
        async def run(part: FlowPart, branch: FlowBranch) -> PartOutcome:
            current_branch.set(branch)
            try:
                awaited: Any = part() if callable(part) else part
                return PartOutcome(self._run.ended(branch, await awaited))
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                return PartOutcome(error=self._run.failed(branch, error))

        tasks = [
            asyncio.ensure_future(run(part, branch))
            for part, branch in zip(request.parts, request.branches, strict=True)
        ]
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


async def _await_within(seconds: float | None, step: CallStep) -> Any:
    if seconds is None:
        return await _await_call(step)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await _await_call(step)
    except TimeoutError:
        if not limit.expired():
            raise
        raise out_of_time(step, seconds) from None


async def _await_call(step: CallStep) -> Any:
    task, branch = current_task.set(step.running), current_branch.set(None)
    try:
        if not is_async(step.function):
            value = await call_in_own_thread(copy_context().run, call_step, step)
        else:
            value = step.function(*step.args, **step.named)
        return await value if hasattr(value, "__await__") else value
    finally:
        current_task.reset(task)
        current_branch.reset(branch)
