"""One request and its answer, as handlers see them; and the route table's entries.

A handler gets an ``ApiRequest``: everything read, checked and converted. It returns a document.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache, wraps
from inspect import iscoroutinefunction
from math import ceil
from typing import Any, Final, TypeVar, cast

import msgspec
import msgspec.structs
from starlette.requests import Request
from starlette.responses import Response

from milecastle.model.actor import Actor
from milecastle.model.keys import ThreadKey
from milecastle.server.access import Access
from milecastle.server.documents import NoQuery
from milecastle.server.identity import Identity, TokenScope
from milecastle.server.limits import JSON
from milecastle.server.problems import FORBIDDEN, UNREADABLE, Refused
from milecastle.server.service import Service
from milecastle.views.values import anything

T = TypeVar("T")

THREAD: Final = "/v1/threads/{thread}"
_TWICE: Final = "a parameter is given twice"
_OPTIONS: Final = (
    "; options has if_busy, if_absent and retry. A submitted run does not carry limits such as "
    "max_steps and timeout: the worker uses those of the graph, which with_default_config() sets"
)


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. ``query`` and ``body`` have the types declared by its endpoint."""

    service: Service
    access: Access
    identity: Identity
    http: Request
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    @property
    def key(self) -> ThreadKey:
        return self.service.key(self.tenant, self.path["thread"])

    def actor(
        self, reason: str = "", shown: str | None = None, on_behalf_of: str | None = None
    ) -> Actor:
        """The authenticated caller. Its name never comes from a body."""
        name = self.identity.name or f"tenant:{self.tenant}"
        return Actor(name, "authenticated", reason, shown, on_behalf_of)

    def require(self, scope: TokenScope) -> None:
        require_scope(self.identity, scope)

    async def off_loop(self, function: Callable[..., T], *args: Any) -> T:
        return await self.service.off_loop(function, *args)


class Reply(msgspec.Struct, frozen=True):
    """An answer. ``behind``: for how many seconds it may have been out of date."""

    document: msgspec.Struct
    status: int = 200
    behind: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        return {"Age": str(ceil(self.behind))} if self.behind else {}


Handler = Callable[[ApiRequest], Awaitable[msgspec.Struct | Response]]
"""Returns a ``Reply``, or a document for status 200."""


def asynchronous(
    handler: Callable[[ApiRequest], T] | Callable[[ApiRequest], Awaitable[T]],
) -> Callable[[ApiRequest], Awaitable[T]]:
    """Call a handler that is not async off the event loop."""
    if iscoroutinefunction(handler):
        return cast("Callable[[ApiRequest], Awaitable[T]]", handler)
    reader = cast("Callable[[ApiRequest], T]", handler)

    @wraps(reader)
    async def called(request: ApiRequest) -> T:
        return await request.off_loop(reader, request)

    return called


async def _undeclared(request: ApiRequest) -> Response:
    raise NotImplementedError


class Endpoint(msgspec.Struct, frozen=True):
    """A route, declared as the decorator of its handler, which takes its place.

    ``scope`` is required of a token; ``None``: the handler decides, or no token is needed.
    ``answers`` are the documents by status, a text if it is not JSON; ``problems`` are this
    endpoint's own statuses. ``stores`` says it asks the store. ``also`` are more required scopes.
    ``kinds`` are the media types of bodies, if the caller sends a token. ``is_raw``: its handler
    gets the body's bytes, and says itself who may send it.
    """

    method: str
    path: str
    scope: TokenScope | None
    answers: Mapping[int, Any]
    handler: Handler = _undeclared
    summary: str = ""
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    problems: tuple[int, ...] = ()
    stores: bool = True
    also: tuple[TokenScope, ...] = ()
    kinds: tuple[str, ...] = (JSON,)
    is_raw: bool = False

    def __call__(self, handler: Handler | Callable[[ApiRequest], msgspec.Struct]) -> Endpoint:
        summary = self.summary or (handler.__doc__ or "").partition("\n")[0]
        return msgspec.structs.replace(self, handler=asynchronous(handler), summary=summary)

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def all_problems(self) -> tuple[int, ...]:
        found = {400, 403, 431, *self.problems}
        found |= {401, 429, 503} if self.scope else set()
        found |= {503} if self.stores else set()
        found |= {408, 413, 415} if self.body else set()
        return tuple(sorted(found))


def require_scope(identity: Identity, scope: TokenScope) -> None:
    if scope not in identity.scopes:
        raise Refused(FORBIDDEN, 403, f"this needs a token with the scope {scope}")


def convert_query(kind: type[T], given: list[tuple[str, str]]) -> T:
    """Convert query parameters; one with a tuple type may be repeated."""
    values: dict[str, Any] = {}
    several = _repeatable(anything(kind))
    for name, text in given:
        if name in several:
            values.setdefault(name, []).append(text)
        elif name in values:
            raise Refused(UNREADABLE, 400, _TWICE)
        else:
            values[name] = text
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(UNREADABLE, 400, f"the query is not valid: {error}") from None


@cache
def _repeatable(kind: type[Any]) -> frozenset[str]:
    fields = msgspec.structs.fields(kind)
    return frozenset(one.encode_name for one in fields if isinstance(one.default, tuple))


def decode_body(kind: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        hint = _OPTIONS if "`$.options" in str(error) else ""
        raise Refused(UNREADABLE, 400, f"the body is not valid: {error}{hint}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(UNREADABLE, 400, "the body is not JSON") from None
    except RecursionError:
        raise Refused(UNREADABLE, 400, "the body is nested too deeply") from None
