"""The ASGI application: checks a request, finds its route in a table, and answers.

There are three tables: the API's endpoints, those for chat front ends, and the pages. All are
checked alike.

Rules:

- A request's size, Host and Origin are checked first; its body is read only after the token and its
  scope are checked.
- Paths are matched as they were sent: a ``%2F`` in a thread's name is part of the name.
- Every answer says how it may be used: not sniffed, not stored, not framed.
- Errors are problem documents; on pages, and where a browser follows a wrong link, they are pages.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from milecastle.app.application import App
from milecastle.errors import InvalidRequest
from milecastle.fleet.worker import WorkerOptions
from milecastle.server.access import Access, Identify, credential, normal_name, refuse_foreign
from milecastle.server.budget import outgoing
from milecastle.server.chat.table import CHAT
from milecastle.server.documents import WaitQuery
from milecastle.server.event_stream import EventStreamResponse
from milecastle.server.hooks import InboundHook
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.json_answers import json_answer
from milecastle.server.limits import JSON, read_body, refuse_large_headers, refuse_two_lengths
from milecastle.server.mounting import mount_point, unmounted
from milecastle.server.oidc.settings import Oidc
from milecastle.server.pages.forms import FORM, decode_form
from milecastle.server.pages.live import live_parts, wants_stream
from milecastle.server.pages.rendering import Renderer, prefers_html
from milecastle.server.pages.table import PAGES
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.problems import (
    NOT_FOUND,
    UNAUTHORIZED,
    UNREADABLE,
    Refused,
    problem_response,
)
from milecastle.server.receiving import hook_endpoint
from milecastle.server.redaction import Redact, without_values
from milecastle.server.request import (
    ApiRequest,
    Endpoint,
    Reply,
    convert_query,
    decode_body,
    require_scope,
)
from milecastle.server.routes import ENDPOINTS
from milecastle.server.service import Service
from milecastle.server.tokens import TokenFile
from milecastle.server.turns import CALLER, OpenRequests

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_UNVERIFIED = 200
"""Requests whose bodies are read before their senders are known."""

_OTHER = "(other)"
_NOBODY = Identity("", frozenset())


class Mounted(Protocol):
    """Another protocol under one path. It checks scopes; the token is checked before it."""

    path: str

    def running(self) -> AbstractAsyncContextManager[None]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Application:
    def __init__(
        self,
        service: Service,
        access: Access,
        hosts: Collection[str] = (),
        mcp: Mounted | None = None,
        hooks: Iterable[InboundHook] = (),
    ) -> None:
        self.service = service
        self.open_requests = OpenRequests()
        self.unverified = OpenRequests()
        self.unverified.most = _UNVERIFIED
        self.access = access
        self._mcp = mcp
        self._hosts = frozenset({"localhost", *map(normal_name, hosts)})
        has_builds = any(app.workspace is not None for app in service.apps.values())
        hidden = () if has_builds else ("Builds",)
        people = access.signing_in
        issuer = "" if people is None else people.settings.issuer_host
        self._renderer = Renderer(PAGES, frozenset(service.apps), hidden, issuer)
        paths: defaultdict[str, dict[str, Endpoint | WebPage]] = defaultdict(dict)
        lines: list[Endpoint | WebPage] = [*ENDPOINTS, *CHAT, *PAGES]
        if hooks := tuple(hooks):
            lines.append(hook_endpoint(hooks))
        for line in lines:
            paths[line.path][line.method] = line
        self._router = Router(
            [Route(path, _Resource(self, path, found)) for path, found in paths.items()],
            redirect_slashes=False,
            default=self._nowhere,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncGenerator[None, None]:
        """Run the worker while the block runs; for a host application with this one mounted."""
        async with self.service.running():
            if self._mcp is None:
                yield
                return
            async with self._mcp.running():
                yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        scope = unmounted(scope)
        guarded = self._timed(scope, _with_headers(send, mount_point(scope)))
        try:
            refuse_large_headers(scope)
            refuse_two_lengths(scope)
            refuse_foreign(Headers(scope=scope), self._hosts, scope["method"])
            if self._mcp is not None and scope["path"] == self._mcp.path:
                await self._speak_mcp(self._mcp, scope, receive, guarded)
                return
        except Refused as error:
            await self.problem(error, Request(scope))(scope, receive, guarded)
            return
        await self._router(scope, receive, guarded)

    def _timed(self, scope: Scope, send: Send) -> Send:
        began, requests = monotonic(), self.service.requests

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                requests.observe(monotonic() - began, *self._named(scope), _kind(message["status"]))
            await send(message)

        return sent

    def _named(self, scope: Scope) -> tuple[str, str]:
        """A request's method and route, as in the tables: callers choose neither."""
        found = scope.get("endpoint")
        if isinstance(found, _Resource):
            return found.method(scope["method"]), found.path
        if self._mcp is not None and scope["path"] == self._mcp.path:
            return _OTHER, self._mcp.path
        return _OTHER, _OTHER

    async def _speak_mcp(self, mcp: Mounted, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        await self.access.get_ready(headers)
        identity = self.access.identify(headers)
        with self.open_requests.one(self.access.caller(headers, identity)):
            await mcp(scope, receive, send)

    async def answer(
        self, endpoint: Endpoint | WebPage, http: Request, held: ExitStack
    ) -> Response:
        """Answer a request with an endpoint or a page; never raises.

        Resources in ``held`` are released after the answer is sent.
        """
        try:
            request = await self._read(endpoint, http, held)
            if isinstance(endpoint, WebPage):
                response = await self._page(endpoint, request)
            else:
                reply = await endpoint.handler(request)
                if isinstance(request.query, WaitQuery) and request.query.wait:
                    self._recognize(request)  # the token may have been revoked meanwhile
                response = reply if isinstance(reply, Response) else await self._sent(reply)
            if isinstance(response, EventStreamResponse):
                response.check = partial(self._recognize, request)
            return response
        except Refused as error:
            return self.problem(error, http, is_page=isinstance(endpoint, WebPage))
        except Exception as error:  # its message may be long
            is_page = isinstance(endpoint, WebPage)
            return await self.service.off_loop(partial(self.problem, error, http, is_page=is_page))

    async def _sent(self, answer: msgspec.Struct) -> Response:
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        make = partial(outgoing, reply.document, self.service.redact)
        return await json_answer(self.service, make, reply.status, reply.headers)

    async def _page(self, page: WebPage, request: ApiRequest) -> Response:
        view = await page.handler(request)
        if not isinstance(view, PageView):
            return view
        if view.live and page.method == "GET" and wants_stream(request.http):
            parts = live_parts(self._renderer, page, request)
            return EventStreamResponse(self.service.closing, parts)
        return await self._renderer.response(view, request)

    def _recognize(self, request: ApiRequest) -> None:
        if self.access.identify(request.http.headers) != request.identity:
            raise Refused(UNAUTHORIZED, 401, "the caller is another one now")

    def problem(self, error: Exception, http: Request, *, is_page: bool = False) -> Response:
        error = without_values(error, self.service.redact)
        if is_page or prefers_html(http):
            return self._renderer.problem(error, http)
        return problem_response(error)

    async def _nowhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = Refused(NOT_FOUND, 404, "there is nothing under this path")
            await self.problem(error, Request(scope))(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000, "reason": ""})

    async def _read(
        self, endpoint: Endpoint | WebPage, http: Request, held: ExitStack
    ) -> ApiRequest:
        identity = _NOBODY
        if endpoint.scope is not None:
            await self.access.get_ready(http.headers)
            identity = self.access.identify(http.headers)
            require_scope(identity, endpoint.scope)
            for scope in endpoint.also if isinstance(endpoint, Endpoint) else ():
                require_scope(identity, scope)
            caller = self.access.caller(http.headers, identity)
            held.enter_context(self.open_requests.one(caller))
            CALLER.set(caller)
        elif isinstance(endpoint, Endpoint) and endpoint.is_raw:
            held.enter_context(self.unverified.one(""))
        query = convert_query(endpoint.query, http.query_params.multi_items())
        if isinstance(query, WaitQuery) and query.wait:  # the answer has the state
            require_scope(identity, "read")
        return ApiRequest(
            service=self.service,
            access=self.access,
            identity=identity,
            http=http,
            path=_names(http.path_params),
            query=query,
            body=await _body(self.service, endpoint, http),
        )


async def _body(service: Service, endpoint: Endpoint | WebPage, http: Request) -> Any:
    if isinstance(endpoint, WebPage):
        if endpoint.form is None:
            return None
        given = await read_body(http, FORM)
        return await service.if_large(len(given), decode_form, endpoint.form, given, http.headers)
    if endpoint.is_raw:
        return await read_body(http, *endpoint.kinds)
    if endpoint.body is None:
        return None
    is_token = credential(http.headers).is_token  # pages of other sites can send plain text
    kinds = endpoint.kinds if is_token else (JSON,)
    given = await read_body(http, *kinds)
    return await service.if_large(len(given), decode_body, endpoint.body, given)


def _names(found: Mapping[str, str]) -> dict[str, str]:
    try:
        return {name: unquote(text, errors="strict") for name, text in found.items()}
    except UnicodeDecodeError:
        raise Refused(UNREADABLE, 400, "a name in the path is not UTF-8") from None


class _Resource:
    def __init__(
        self, application: Application, path: str, endpoints: Mapping[str, Endpoint | WebPage]
    ) -> None:
        self._application = application
        self.path = path
        self._endpoints = endpoints

    def method(self, given: str) -> str:
        return given if given in self._endpoints else _OTHER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        http = Request(scope, receive, send)
        if endpoint is None:
            allowed = {"Allow": ", ".join(self._endpoints)}
            error = Refused(NOT_FOUND, 405, "it has other methods", allowed)
            response = self._application.problem(error, http)
        else:
            with ExitStack() as held:
                response = await self._application.answer(endpoint, http, held)
                await response(scope, receive, send)
            return
        await response(scope, receive, send)


def _kind(status: int) -> str:
    return f"{status // 100}xx"


def _with_headers(send: Send, mount: str) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            is_redirect = 300 <= message["status"] < 400
            if mount and is_redirect and headers.get("location", "").startswith("/"):
                headers["location"] = mount + headers["location"]
        await send(message)

    return sent


def assemble(
    apps: Sequence[App[Any]],
    *,
    tokens: str | os.PathLike[str] | None,
    token: str | None,
    hosts: Iterable[str],
    worker: bool | None,
    redact: Redact | None = None,
    identify: Identify | None = None,
    mcp: bool = False,
    oidc: Oidc | None = None,
    hooks: Iterable[InboundHook] = (),
    deliver_to: Iterable[str] = (),
) -> Application:
    if tokens is None and token is None and identify is None and oidc is None:
        raise InvalidRequest(
            "a server needs tokens=, a file, token=, oidc= or identify=: nothing is public"
        )
    file = None if tokens is None else TokenFile(tokens)
    options = WorkerOptions(deliver_to=tuple(deliver_to))
    service = Service(apps, worker=worker, options=options, redact=redact)
    start = None if token is None else (token, Identity(service.tenant, ALL_SCOPES))
    issuer = None
    if oidc is not None:
        from milecastle.server.oidc.issuer import Issuer

        issuer = Issuer(oidc)
        hosts = [*hosts, oidc.host] if oidc.host else hosts
    access = Access((), start, file=file, identify=identify, issuer=issuer)
    mounted: Mounted | None = None
    if mcp:
        from milecastle.server.mcp.serving import McpPath

        mounted = McpPath(service, access.identify)
    return Application(service, access, frozenset(hosts), mounted, hooks)
