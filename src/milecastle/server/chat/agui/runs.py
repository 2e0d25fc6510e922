from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from milecastle.errors import InvalidRequest
from milecastle.model.actor import Actor
from milecastle.model.keys import ThreadKey
from milecastle.server.chat.agui.documents import AgentInput, AguiEvent
from milecastle.server.chat.agui.translating import BREAKPOINT, AguiTranslation
from milecastle.server.chat.following import RunEvent, follow_run, seq_of, shown, translated
from milecastle.server.chat.messages import MESSAGES, messages_in, submit_message
from milecastle.server.documents import RunRequest
from milecastle.server.event_stream import EventStreamResponse
from milecastle.server.graphs import served
from milecastle.server.request import ApiRequest, Endpoint
from milecastle.server.runs import answer_thread, retry_thread
from milecastle.server.service import Service
from milecastle.server.threads import cancel_thread
from milecastle.views.values import as_json, plain


async def run_agent(request: ApiRequest) -> Response:
    asked: AgentInput = request.body
    service, key = request.service, request.service.key(request.tenant, asked.thread_id)
    graph = served(request).graph.name if "graph" in request.path else None
    if asked.resume:
        request.require("answer")
        if graph is not None:
            await request.off_loop(service.refuse_other_graph, key, graph)
        run_id, seq = await _resumed(service, key, asked, request.actor())
    else:
        run_id, seq = await _submitted(service, key, graph, asked)
    events = await follow_run(service, key, run_id, seq - 1)
    given = asked.thread_id, asked.run_id, asked.messages
    translation = await service.off_loop(AguiTranslation, *given)
    return EventStreamResponse(service.closing, _texts(service, translation, events))


async def _submitted(
    service: Service, key: ThreadKey, graph: str | None, asked: AgentInput
) -> tuple[str, int]:
    app = await service.off_loop(service.app_for, key, graph)
    channels = frozenset(app.graph.schema.channels)
    given = await service.off_loop(_input, service, key, channels, asked)
    wanted = RunRequest(input=given, graph=app.graph.name, key=asked.run_id)
    handle = await submit_message(service, key, app, wanted, ("failed", "cancelled"))
    return handle.run_id, await service.off_loop(seq_of, service, handle)


def _input(
    service: Service, key: ThreadKey, channels: frozenset[str], asked: AgentInput
) -> dict[str, Any]:
    """New input in a request: the client sends all messages and the full state each time."""
    state, ids = _known(service, key)
    given = {
        name: value
        for name, value in (asked.state or {}).items()
        if name != MESSAGES and not (name in state and state[name] == value)
    }
    more = {
        "tools": asked.tools,
        "context": asked.context,
        "forwarded_props": asked.forwarded_props,
    }
    given |= {name: value for name, value in more.items() if name in channels and value is not None}
    if not all(isinstance(one.get("id"), str | None) for one in asked.messages):
        raise InvalidRequest("the id of a message is a string")
    messages = [one for one in asked.messages if one.get("id") not in ids]
    if messages and MESSAGES not in channels:
        raise InvalidRequest("the state of this graph has no messages: send state, and no messages")
    return {**given, MESSAGES: messages} if messages else given


def _known(service: Service, key: ThreadKey) -> tuple[dict[str, Any], set[str]]:
    if service.store.thread(key) is None:
        return {}, set()
    values = service.decoded(key, service.chain(key, None)).values
    return shown(service, key).state or {}, {one["id"] for one in messages_in(plain(values))}


async def _resumed(
    service: Service, key: ThreadKey, asked: AgentInput, by: Actor
) -> tuple[str, int]:
    entries = asked.resume or []
    answers = {one.interrupt_id: one.payload for one in entries if one.status == "resolved"}
    if not answers:
        info = await service.off_loop(service.line, key)
        await cancel_thread(service, key, info.run_id)
        head = await service.off_loop(service.chain, key, None)
        return info.run_id, head.entries[-1].seq
    if len(answers) < len(entries):
        raise InvalidRequest("some interrupts are resolved and others cancelled: send one kind")
    if set(answers) == {BREAKPOINT}:
        handle = await retry_thread(service, key)
    else:
        handle = await answer_thread(service, key, answers, by)
    return handle.run_id, await service.off_loop(seq_of, service, handle)


async def _texts(
    service: Service, translation: AguiTranslation, events: AsyncGenerator[RunEvent, None]
) -> AsyncGenerator[bytes, None]:
    yield _text(translation.begin())
    async with aclosing(events) as found:
        async for event in found:
            if event is None:
                yield b""
            for text in await translated(service, event, partial(_made, translation, event)):
                yield text
    if not translation.is_over:
        for made in translation.failed("the thread was deleted", ""):
            yield _text(made)


def _made(translation: AguiTranslation, event: RunEvent) -> Iterator[bytes]:
    return map(_text, translation.events(event))


def _text(event: AguiEvent) -> bytes:
    return f"data: {as_json(msgspec.to_builtins(event))}\n\n".encode()


AGUI: Final = tuple(
    Endpoint(
        "POST",
        path,
        "run",
        also=("read",),
        body=AgentInput,
        answers={200: "text/event-stream"},
        problems=(404, 409, 422, 500),
    )(run_agent)
    for path in ("/agui", "/agui/{graph}")
)
