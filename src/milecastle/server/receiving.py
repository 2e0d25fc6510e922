"""``POST /hooks/{name}``: another service's event, verified before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.actor import Actor
from milecastle.server.hooks import (
    AnswerTo,
    InboundHook,
    SendTo,
    SubmitTo,
    known_hooks,
    unknown_hook,
)
from milecastle.server.problems import UNAUTHORIZED, UNREADABLE, Refused
from milecastle.server.request import ApiRequest, Endpoint, Reply
from milecastle.server.service import Service

PATH: Final = "/hooks/{name}"


class HookDocument(msgspec.Struct, frozen=True, kw_only=True):
    accepted: bool = True


def hook_endpoint(hooks: Iterable[InboundHook]) -> Endpoint:
    known, unknown = known_hooks(hooks), unknown_hook()

    async def receive(request: ApiRequest) -> Reply:
        """Take another service's event."""
        found = known.get(request.path["name"], unknown)
        await request.off_loop(_take, request.service, found, request.http.headers, request.body)
        return Reply(HookDocument(), 202)

    answers = {202: HookDocument}
    return Endpoint("POST", PATH, None, answers=answers, is_raw=True)(receive)


def _take(service: Service, found: InboundHook, headers: Mapping[str, str], body: bytes) -> None:
    id = found.verify({name.lower(): text for name, text in headers.items()}, body)
    if not id:
        raise Refused(UNAUTHORIZED, 401, "no hook of this name accepts this event")
    try:
        event = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(UNREADABLE, 400, "the body is not JSON") from None
    wanted = found.to(event)
    if wanted is not None:
        _do(service, found, wanted, f"{found.name}:{id}")


def _do(service: Service, found: InboundHook, wanted: Any, id: str) -> None:
    if not isinstance(wanted, SendTo | SubmitTo | AnswerTo):
        raise InvalidRequest(
            f"to= of hook '{found.name}' returns SendTo, SubmitTo, AnswerTo or None, not "
            f"{type(wanted).__name__}"
        )
    key = service.key(found.tenant or service.tenant, wanted.thread)
    app, by, once = service.app_for(key, wanted.graph), f"hook:{found.name}", wanted.key or id
    match wanted:
        case SendTo():
            app.send(key, wanted.value, wanted.topic, key=once, by=by)
        case SubmitTo():
            app.submit(wanted.input, key, key=once, if_busy="queue")
        case AnswerTo():
            actor, answers = (
                Actor(wanted.by or by, "authenticated"),
                {wanted.question: wanted.answer},
            )
            app.answer(key, answers=answers, key=once, by=actor)
