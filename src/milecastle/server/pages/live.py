"""A page as Server-Sent Events: its live part, again whenever it has changed.

Rules:

- A page and its stream have one URL; a browser asks for the stream by ``Accept``.
- The part is rendered again after a pause, a long one if rendering takes long, but not if its
  sources are the same; and sent only if it has changed.
- A stream ends after some minutes. The browser comes back by itself, and its session is checked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Final

import msgspec.json
from starlette.requests import Request

from milecastle.server.event_stream import HEARTBEAT, event_text
from milecastle.server.pages.rendering import Renderer
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest

PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 5.0
LONGEST: Final = 600.0
"""Seconds: between two looks, at least and at most; that a stream lasts."""

_TIME: Final = re.compile('data-ago="[^"]*">[^<]*<')
"""What grows by itself with time: the script counts it on, and it alone is not sent."""
_SHARE: Final = 10
"""How many times as long as rendering a part the pause is."""


def wants_stream(http: Request) -> bool:
    return http.headers.get("accept") == "text/event-stream"


async def live_parts(
    renderer: Renderer, page: WebPage, request: ApiRequest
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    opened = said = loop.time()
    shown = of = ""
    while (began := loop.time()) < opened + LONGEST:
        was, of = (
            of,
            "" if page.made_of is None else await request.off_loop(page.made_of, request),
        )
        text = "" if of and of == was else await _part(renderer, page, request)
        if text and (timeless := _TIME.sub("", text)) != shown:
            shown, said = timeless, loop.time()
            yield event_text("part", msgspec.json.encode(text).decode())  # 300 kB at most
        elif loop.time() > said + HEARTBEAT:
            said = loop.time()
            yield b""
        slow = min(LONGEST_PAUSE, _SHARE * (loop.time() - began))
        await asyncio.sleep(max(PAUSE, slow))


async def _part(renderer: Renderer, page: WebPage, request: ApiRequest) -> str:
    view = await page.handler(request)
    if not isinstance(view, PageView) or view.live is None:
        raise Refused(NOT_FOUND, 404, "it is not a live page any more")
    return await request.off_loop(renderer.part, view, view.live, request)
