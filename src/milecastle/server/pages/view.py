from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import msgspec.structs
from starlette.responses import Response

from milecastle.server.documents import NoQuery
from milecastle.server.identity import TokenScope
from milecastle.server.request import ApiRequest, asynchronous
from milecastle.server.service import Service


class PagePlace(msgspec.Struct, frozen=True):
    path: str
    names: Mapping[str, str]


class PageView(msgspec.Struct, frozen=True, kw_only=True):
    """A page before it is HTML.

    ``template`` is a file in ``templates/``, ``values`` are its variables. ``live`` is the template
    it includes, with ``id="live"`` on its only element: the part requested again and again while
    the page is shown. ``commands`` show or do the same, each without ``milecastle``. ``place`` is a
    page to redirect to instead, if it is in the table. ``behind``: for how many seconds the page
    may have been out of date.
    """

    template: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    values: Mapping[str, Any]
    live: str | None = None
    status: int = 200
    place: PagePlace | None = None
    behind: float = 0.0


PageHandler = Callable[[ApiRequest], Awaitable[PageView | Response]]
MadeOf = Callable[[ApiRequest], str]
"""What the live part of a page depends on, empty if it is not known. It is called off the loop."""
Badge = Callable[[Service, str], str]
"""The number beside a link, for a tenant; empty if there is none. It is called off the loop."""


async def _undeclared(request: ApiRequest) -> Response:
    raise NotImplementedError


class WebPage(msgspec.Struct, frozen=True):
    """A page, declared as the decorator of its handler, which takes its place.

    ``scope`` is required; ``None``: no caller is asked. ``form`` is the sent form's type, always
    with a CSRF token. A page with a ``label`` is in the navigation, with its ``badge``: a number
    that ``counts`` something, in the colour ``tone``. A page's live part is rendered again if its
    ``made_of`` has changed, or is not known.
    """

    method: str
    path: str
    scope: TokenScope | None
    handler: PageHandler = _undeclared
    query: type[msgspec.Struct] = NoQuery
    form: type[msgspec.Struct] | None = None
    label: str = ""
    badge: Badge | None = None
    tone: str = ""
    counts: str = ""
    made_of: MadeOf | None = None

    def __call__(
        self, handler: PageHandler | Callable[[ApiRequest], PageView | Response]
    ) -> WebPage:
        return msgspec.structs.replace(self, handler=asynchronous(handler))

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def of_tenant(tenant: str) -> tuple[str, ...]:
    return () if tenant == "default" else (f"--tenant={tenant}",)
