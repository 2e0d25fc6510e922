from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from itertools import dropwhile, islice, takewhile
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec
from starlette.responses import Response

from milecastle.app.runs.submission import Handle
from milecastle.errors import InvalidRequest
from milecastle.model.actor import Actor
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus
from milecastle.server.chat.following import (
    RunEvent,
    RunStopped,
    follow_run,
    seq_of,
    shown,
    translated,
)
from milecastle.server.chat.langgraph.describing import (
    INTERRUPT,
    answered,
    interrupt_of,
    run_of,
    values_of,
)
from milecastle.server.chat.langgraph.documents import JoinQuery, ListRunsQuery, RunInput, SdkRun
from milecastle.server.chat.langgraph.translating import MODES, SdkTranslation, known_modes
from milecastle.server.chat.messages import MESSAGES, as_object, role_of, submit_message
from milecastle.server.documents import ForkRequest, RunOptions, RunRequest, StateEvent
from milecastle.server.event_stream import EventStreamResponse
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.redaction import redacted
from milecastle.server.request import ApiRequest
from milecastle.server.runs import answer_thread, retry_thread
from milecastle.server.service import Service
from milecastle.server.threads import cancel_thread, fork_thread
from milecastle.views.documents import QuestionLine
from milecastle.views.showing import run_lines
from milecastle.views.values import anything, as_json

_BUSY: Final[Mapping[str, Literal["reject", "queue", "cancel"]]] = {
    "reject": "reject",
    "interrupt": "cancel",  # and its messages are kept
    "rollback": "cancel",
    "enqueue": "queue",
}


_STOPPED: Final[tuple[RunStatus, ...]] = ("failed", "cancelled", "interrupted")
"""Of runs that a new message closes, whatever its strategy is: nothing continues them by itself."""


class StartedRun(msgspec.Struct, frozen=True):
    key: ThreadKey
    run_id: str
    after: int

    def place(self, ending: str = "") -> str:
        return f"/threads/{quote(self.key.thread, safe='')}/runs/{self.run_id}{ending}"


# ---- starting


async def create_run(request: ApiRequest) -> Response:
    run = await _start(request)
    return await answered(
        request, _run, request.service, run.key, run.run_id, content_location=run.place()
    )


async def stream_run(request: ApiRequest) -> Response:
    asked: RunInput = request.body
    modes = known_modes(asked.stream_mode)
    run = await _start(request)
    cancels = asked.on_disconnect == "cancel" and not asked.stream_resumable
    return await _streamed(request.service, run, modes, cancels=cancels)


async def wait_for_run(request: ApiRequest) -> Response:
    run = await _start(request)
    return await _awaited(request.service, run)


async def _start(request: ApiRequest) -> StartedRun:
    asked: RunInput = request.body
    service = request.service
    name = request.path.get("thread") or str(uuid4())
    key = service.key(request.tenant, name)
    if asked.assistant_id not in service.apps:
        raise Refused(NOT_FOUND, 404, "this server does not have the graph")
    if asked.if_not_exists == "reject":
        await request.off_loop(service.line, key)
    if asked.command is not None:
        request.require("answer" if asked.command.goto is None else "run")
    if asked.command is not None or asked.input is None:
        await request.off_loop(service.refuse_other_graph, key, asked.assistant_id)
    await _go_back(service, key, asked)
    if asked.command is not None:
        return await _commanded(service, key, asked, request.actor())
    handle = await _handed_over(service, key, asked)
    seq = await request.off_loop(seq_of, service, handle)
    return StartedRun(key, handle.run_id, seq - 1)


async def _handed_over(service: Service, key: ThreadKey, asked: RunInput) -> Handle[Any]:
    config = asked.context or None
    if asked.input is None:
        return await retry_thread(service, key, delay=asked.after_seconds, config=config)
    wanted = RunRequest(
        input=_with_roles(asked.input),
        graph=asked.assistant_id,
        key=str(uuid4()),  # the same input twice is two runs
        delay=asked.after_seconds,
        options=RunOptions(if_busy=_BUSY[asked.multitask_strategy]),
        config=config,
    )
    closes = _STOPPED
    if asked.multitask_strategy == "interrupt":
        closes = (*_STOPPED, "queued", "running", "sleeping")
    app = service.named(asked.assistant_id)
    steers = asked.multitask_strategy == "enqueue" and not (asked.after_seconds or config)
    return await submit_message(service, key, app, wanted, closes, steers=steers)


def _with_roles(given: dict[str, Any]) -> dict[str, Any]:
    messages: Any = given.get(MESSAGES)
    if not isinstance(messages, list):
        return given
    items: list[Any] = anything(messages)
    return {**given, MESSAGES: [_with_role(item) for item in items]}


def _with_role(item: Any) -> Any:
    found = as_object(item)
    return item if found is None or "type" not in found else {"role": role_of(found), **found}


async def _go_back(service: Service, key: ThreadKey, asked: RunInput) -> None:
    id = asked.checkpoint_id or (asked.checkpoint.checkpoint_id if asked.checkpoint else None)
    if id:
        head = await service.off_loop(service.store.head, key)
        if head is None or head.id != id:
            await service.off_loop(fork_thread, service, key, ForkRequest(at=id))


async def _commanded(service: Service, key: ThreadKey, asked: RunInput, by: Actor) -> StartedRun:
    command = asked.command
    if command is None or asked.input:
        raise InvalidRequest("a run has an input or a command, not both")
    if command.goto is not None:
        info = await service.off_loop(service.line, key)
        await cancel_thread(service, key, info.run_id)
        head = await service.off_loop(service.chain, key, None)
        return StartedRun(key, info.run_id, head.entries[-1].seq - 1)
    if command.resume is msgspec.UNSET:
        raise InvalidRequest("a command has resume, or goto the end")
    answers = await service.off_loop(_answers, service, key, command.resume)
    handle = await answer_thread(service, key, answers, by, config=asked.context or None)
    return StartedRun(key, handle.run_id, await service.off_loop(seq_of, service, handle) - 1)


def _answers(service: Service, key: ThreadKey, given: Any) -> dict[str, Any]:
    ids = [line.id for line in shown(service, key).questions]
    by_id = as_object(given)
    if by_id and set(by_id) <= set(ids):
        return by_id
    if len(ids) != 1:
        raise InvalidRequest(f"thread '{key.thread}' has {len(ids)} open questions: send their ids")
    return {ids[0]: given}


# ---- following


async def join_stream(request: ApiRequest) -> Response:
    query: JoinQuery = request.query
    if query.cancel_on_disconnect:
        request.require("run")
    modes = known_modes(query.stream_mode) or MODES
    run = await request.off_loop(_joined, request)
    return await _streamed(request.service, run, modes, cancels=query.cancel_on_disconnect)


def _joined(request: ApiRequest) -> StartedRun:
    service, key, run_id = request.service, request.key, request.path["run"]
    _run(service, key, run_id)
    given = request.http.headers.get("last-event-id")
    if given not in (None, "", "-1"):
        if not (given.isascii() and given.isdecimal() and len(given) < 18):
            raise InvalidRequest("Last-Event-ID is not an id of this stream")
        return StartedRun(key, run_id, int(given))
    later = dropwhile(lambda one: one.run_id != run_id, service.store.history(key))
    found = takewhile(lambda one: one.run_id == run_id, later)
    seqs = [one.seq for one in (found if given == "-1" else islice(found, 1))]
    return StartedRun(key, run_id, seqs[-1] - 1 if seqs else 0)


async def join_run(request: ApiRequest) -> Response:
    run = await request.off_loop(_joined, request)
    return await _awaited(request.service, run)


async def _streamed(
    service: Service, run: StartedRun, modes: tuple[str, ...], *, cancels: bool
) -> Response:
    events = await follow_run(service, run.key, run.run_id, run.after)
    state = await service.off_loop(_state_before, service, run)
    translation = SdkTranslation(run.key.thread, run.run_id, modes, state)
    query = urlencode([("stream_mode", mode) for mode in modes])
    headers = {"Content-Location": run.place(), "Location": f"{run.place('/stream')}?{query}"}
    texts = _texts(service, run, translation, events, cancels=cancels)
    return EventStreamResponse(service.closing, texts, headers)


def _state_before(service: Service, run: StartedRun) -> Any:
    return shown(service, run.key, str(run.after)).state if run.after else {}


async def _texts(
    service: Service,
    run: StartedRun,
    translation: SdkTranslation,
    events: AsyncGenerator[RunEvent, None],
    *,
    cancels: bool,
) -> AsyncGenerator[bytes, None]:
    try:
        yield translation.begin(run.after)
        async with aclosing(events) as found:
            async for event in found:
                asked = await _asked(service, run.key, event)
                texts = partial(translation.texts, event, asked)
                for text in await translated(service, event, texts):
                    yield text
                cancels = cancels and not isinstance(event, RunStopped)
    finally:
        if cancels and not service.closing.is_set():
            await _cancel(service, run.key, run.run_id)


async def _asked(service: Service, key: ThreadKey, event: RunEvent) -> tuple[QuestionLine, ...]:
    if not isinstance(event, StateEvent) or event.source != "interrupt":
        return ()
    return (await service.off_loop(shown, service, key, str(event.seq))).questions


class _Awaited(EventStreamResponse):
    media_type = "application/json"
    opening = silence = b" "


async def _awaited(service: Service, run: StartedRun) -> Response:
    events = await follow_run(service, run.key, run.run_id, run.after)
    headers = {"Content-Location": run.place(), "Location": run.place("/join")}
    return _Awaited(service.closing, _result(service, events), headers)


async def _result(
    service: Service, events: AsyncGenerator[RunEvent, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events) as found:
        async for event in found:
            if event is None:
                yield b""
            elif isinstance(event, RunStopped):
                yield await service.off_loop(_ending_text, event)


def _ending_text(event: RunStopped) -> bytes:
    return as_json(_ending(event)).encode()


def _ending(event: RunStopped) -> dict[str, Any]:
    failure = event.run.failure
    if event.run.status == "failed":
        kind = failure.error_type if failure else "RunFailed"
        return {"__error__": {"error": kind, "message": failure.message if failure else ""}}
    asked = [msgspec.to_builtins(interrupt_of(line)) for line in event.shown.questions]
    values = values_of(event.shown.state)
    return {**values, INTERRUPT: asked} if asked else values


# ---- looking at runs, and cancelling


def list_runs(request: ApiRequest) -> list[SdkRun]:
    service, key = request.service, request.key
    query: ListRunsQuery = request.query
    service.line(key)
    lines = map(run_of, run_lines(service.store, service.store.runs(key)))
    fitting = (one for one in lines if query.status in (None, one.status))
    return [*islice(fitting, query.offset, query.offset + query.limit)]


def get_run(request: ApiRequest) -> SdkRun:
    return _run(request.service, request.key, request.path["run"])


def _run(service: Service, key: ThreadKey, run_id: str) -> SdkRun:
    run = service.store.run(key, run_id)
    if run is None:
        raise Refused(NOT_FOUND, 404, "there is no such run")
    return run_of(redacted(run_lines(service.store, [run])[0], service.redact))


async def cancel_run(request: ApiRequest) -> Response:
    run_id = request.path["run"]
    await request.off_loop(_run, request.service, request.key, run_id)
    await _cancel(request.service, request.key, run_id)
    return Response(status_code=204 if request.query.wait else 202)


async def _cancel(service: Service, key: ThreadKey, run_id: str) -> None:
    info = await service.off_loop(service.store.thread, key)
    if info is not None and info.run_id == run_id:
        await cancel_thread(service, key, run_id)
