"""The server: threads and runs over HTTP, and live events. Needs the extra ``serve``."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from milecastle.app.application import App
from milecastle.errors import InvalidRequest
from milecastle.server.hooks import (
    AnswerTo,
    InboundHook,
    SendTo,
    SubmitTo,
    hook,
    standard_webhooks,
)
from milecastle.server.identity import Identity
from milecastle.server.oidc.settings import Oidc

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "AnswerTo",
    "Identity",
    "InboundHook",
    "Mountable",
    "Oidc",
    "SendTo",
    "SubmitTo",
    "asgi",
    "hook",
    "problem_for",
    "standard_webhooks",
]

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Mountable(Protocol):
    """An ASGI application with a lifespan, for a host application to mount."""

    def __call__(
        self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send
    ) -> Awaitable[None]: ...

    def lifespan(self, _: object = None) -> AbstractAsyncContextManager[None]:
        """Run the worker while the block runs: ``FastAPI(lifespan=served.lifespan)``."""
        ...


def require_extra() -> None:
    if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
        raise InvalidRequest("the server needs the extra serve: pip install 'milecastle[serve]'")


def require_mcp() -> None:
    require_extra()
    if find_spec("mcp") is None:
        raise InvalidRequest("this needs the extra mcp: pip install 'milecastle[mcp,serve]'")


def require_oidc() -> None:
    require_extra()
    if any(find_spec(name) is None for name in ("cryptography", "jwt")):
        raise InvalidRequest("this needs the extra oidc: pip install 'milecastle[oidc,serve]'")


def problem_for(error: Exception) -> Response:
    """This server's response to an exception, for use in other services.

    A problem document (RFC 9457) with Milecastle's code, and the status fitting: 404 for a thread
    that does not exist, 409 for one in progress. Any other exception is a 500 without details, and
    its type and place are logged. With FastAPI or Starlette::

        @service.exception_handler(MilecastleError)
        async def refuse(request, error):
            return problem_for(error)
    """
    require_extra()
    from milecastle.server.problems import problem_response

    return problem_response(error)


def asgi(
    *apps: App[Any],
    tokens: str | os.PathLike[str] | None = None,
    token: str | None = None,
    hosts: Iterable[str] = (),
    worker: bool | None = None,
    redact: Callable[[str, Any], Any] | None = None,
    identify: Callable[[Mapping[str, str]], Identity | None] | None = None,
    mcp: bool = False,
    oidc: Oidc | None = None,
    hooks: Iterable[InboundHook] = (),
    deliver_to: Iterable[str] = (),
) -> Mountable:
    """The ASGI application serving these apps, which share one store.

    ``tokens`` is a file of bearer tokens, each with a tenant and scopes. ``token`` is one that may
    do everything in the tenant of the first app: for loopback, where ``/?token=`` exchanges it for
    a cookie. A token has at least 32 characters, all of them ASCII. ``hosts`` are the names under
    which the server is reached; addresses and ``localhost`` need no mention. ``worker`` says
    whether submitted runs are run here; by default they are, except on PostgreSQL, where they are
    left to the fleet. It can be mounted under a path of another application, which must then run
    its ``lifespan``: most applications pass no lifespan events on.

    ``redact(place, value)`` is called with every value about to leave, as JSON, and returns
    its replacement: ``place`` is ``$.channel`` for a part of a state, the path of a difference
    (which begins like that), or a name such as ``question``, ``value`` or ``message``.

    ``identify(headers)`` is for a proxy that knows the callers: it gets the headers a request
    has once, by their names in lower case, and returns an ``Identity``, or ``None`` to look for a
    token. Use it only if every request comes through that proxy, and it removes from requests the
    header it sets.

    With ``mcp`` the graphs are also tools of the Model Context Protocol, under ``/mcp``.

    ``oidc`` names an OpenID Connect issuer: its bearer tokens are accepted, and people log in to
    the pages there. Claims give the tenant, the scopes and the name.

    ``hooks`` take events of other services, under ``/hooks/NAME``, each made by ``hook``. The
    worker sends deliveries of hooks to ``deliver_to``, too, as ``WorkerOptions`` says.
    """
    require_extra()
    if mcp:
        require_mcp()
    if oidc is not None:
        require_oidc()
    from milecastle.server.application import assemble

    return assemble(
        apps,
        tokens=tokens,
        token=token,
        hosts=hosts,
        worker=worker,
        redact=redact,
        identify=identify,
        mcp=mcp,
        oidc=oidc,
        hooks=hooks,
        deliver_to=deliver_to,
    )
