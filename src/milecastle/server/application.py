"""The ASGI application: checks a request, finds its line in the table of routes, and answers.

Rules:

- Nothing of a request is looked at before its size, its Host and its Origin; no body is read before
  the token and its scope are.
- Paths are matched as they were sent: a ``%2F`` in the name of a thread is part of the name.
- Every answer says how it may be used: not sniffed, not stored, not framed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from milecastle.server.access import Access, Identity, TokenScope, normal_name, refuse_foreign
from milecastle.server.documents import WaitQuery
from milecastle.server.exchange import Endpoint, Exchange, Reply, convert_query, decode_body
from milecastle.server.limits import read_body, refuse_large_headers
from milecastle.server.problems import FORBIDDEN, NOT_FOUND, UNREADABLE, Refused, problem_response
from milecastle.server.redaction import without_values
from milecastle.server.routes import ENDPOINTS
from milecastle.server.service import Service

__all__ = ["Application"]

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_NOBODY = Identity("", frozenset())


class Application:
    """Serves a service to those whom ``access`` knows, under the names in ``hosts``."""

    def __init__(self, service: Service, access: Access, hosts: Collection[str] = ()) -> None:
        self.service = service
        self._access = access
        self._hosts = frozenset({"localhost", *map(normal_name, hosts)})
        paths: defaultdict[str, dict[str, Endpoint]] = defaultdict(dict)
        for endpoint in ENDPOINTS:
            paths[endpoint.path][endpoint.method] = endpoint
        self._router = Router(
            [Route(path, _Resource(self, found)) for path, found in paths.items()],
            redirect_slashes=False,
            default=_nowhere,
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncGenerator[None, None]:
        async with self.service.running():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; see the ASGI specification."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        guarded = _with_headers(send)
        try:
            refuse_large_headers(scope)
            refuse_foreign(Headers(scope=scope), self._hosts)
        except Refused as error:
            await problem_response(error)(scope, receive, guarded)
            return
        raw = scope.get("raw_path")
        path = raw.decode("ascii", "replace") if raw else scope["path"]
        await self._router({**scope, "path": path}, receive, guarded)

    async def answer(self, endpoint: Endpoint, request: Request) -> Response:
        """What an endpoint answers to a request, whatever happens."""
        try:
            exchange = await self._read(endpoint, request)
            found = await endpoint.handler(exchange)
            redact = self.service.redact
            return found.response(redact) if isinstance(found, Reply) else found
        except Exception as error:
            return problem_response(without_values(error, self.service.redact))

    async def _read(self, endpoint: Endpoint, request: Request) -> Exchange:
        identity = _NOBODY
        if endpoint.scope is not None:
            identity = self._access.identify(request.headers)
            _require(identity, endpoint.scope)
        query = convert_query(endpoint.query, request.query_params.multi_items())
        if isinstance(query, WaitQuery) and query.wait:  # the answer has the state
            _require(identity, "read")
        body = endpoint.body
        return Exchange(
            service=self.service,
            access=self._access,
            identity=identity,
            request=request,
            path=_names(request.path_params),
            query=query,
            body=None if body is None else decode_body(body, await read_body(request)),
        )


def _require(identity: Identity, scope: TokenScope) -> None:
    if scope not in identity.scopes:
        raise Refused(FORBIDDEN, 403, f"this needs a token with the scope {scope}")


def _names(found: Mapping[str, str]) -> dict[str, str]:
    """What the path names, decoded."""
    try:
        return {name: unquote(text, errors="strict") for name, text in found.items()}
    except UnicodeDecodeError:
        raise Refused(UNREADABLE, 400, "a name in the path is not UTF-8") from None


class _Resource:
    """One path, with what its methods do."""

    def __init__(self, application: Application, endpoints: Mapping[str, Endpoint]) -> None:
        self._application = application
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            allowed = {"Allow": ", ".join(self._endpoints)}
            response = problem_response(Refused(NOT_FOUND, 405, "it has other methods", allowed))
        else:
            response = await self._application.answer(endpoint, Request(scope, receive, send))
        await response(scope, receive, send)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        response = problem_response(Refused(NOT_FOUND, 404, "there is nothing under this path"))
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1000, "reason": ""})


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent
