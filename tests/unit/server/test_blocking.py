"""No route and no page stops the event loop, however large what it shows is.

On one store: states of 12 MB of the worst text, a graph of 1,000 nodes, and a history of 1,000
checkpoints with 1 MB each. What counts as blocked is the smaller of wall and process time between
two turns of the loop, so a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypedDict
from urllib.parse import urlencode

import pytest
from starlette.datastructures import Headers

from milecastle import END, START, Context, ExecutionConfig, StateGraph, interrupt
from milecastle.server.chat.table import CHAT
from milecastle.server.pages.forms import csrf_token
from milecastle.server.pages.table import PAGES
from milecastle.server.pages.view import WebPage
from milecastle.server.request import Endpoint
from milecastle.server.routes import ENDPOINTS
from tests.unit.server.calling import ADDRESS, Api, token_of

MOST = 0.05
"""Seconds."""

WORST = {
    "controls": "\x80" * 2_000_000,
    "mixed": "a\x80" * 700_000,
    "turning": "\u202e" * 700_000,
    "ascii": "\x01" * 2_000_000,
    "lines": ["\u2028" * 1000] * 700,
}
"""About 12 MB."""

ENTRIES = 1000
PATIENCE = 1.0
"""Seconds after which a stream is left."""


class Heavy(TypedDict, total=False):
    n: int
    until: int
    asks: bool
    controls: str
    mixed: str
    turning: str
    ascii: str
    lines: list[str]


def heavy() -> StateGraph[Heavy]:
    graph: StateGraph[Heavy] = StateGraph(Heavy, name="heavy")
    graph = graph.with_default_config(ExecutionConfig(max_steps=ENTRIES + 10))

    @graph.node
    def count(state: Heavy, ctx: Context) -> dict[str, Any]:
        if state.get("asks"):
            interrupt("\x80" * 500_000, show=["\u202e" * 100_000] * 5, answer=bool)
        return {"n": state.get("n", 0) + 1}

    graph.add_edge(START, "count")
    graph.add_conditional_edges(
        "count",
        lambda state: "again" if state.get("n", 0) < state.get("until", 0) else "end",
        {"again": "count", "end": END},
    )
    return graph


def large() -> StateGraph[Heavy]:
    graph: StateGraph[Heavy] = StateGraph(Heavy, name="large")
    for number in range(1000):
        graph.add_node(f"node{number}", lambda state: {"n": 1})
    graph.add_edge(START, "node0")
    for number in range(999):
        targets = {"on": f"node{number + 1}", "far": f"node{number * 7919 % 1000}"}
        graph.add_conditional_edges(f"node{number}", lambda state: "on", targets)
    graph.add_edge("node999", END)
    return graph


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    found = Api(Path(tmp_path_factory.mktemp("heavy")))
    apps = [one.compile(store=found.app.store) for one in (heavy(), large())]
    apps[0].invoke({"n": 0, **WORST}, "t")
    apps[0].invoke({"n": 0, "until": ENTRIES, "controls": "\x80" * 500_000}, "long")
    apps[0].invoke({"asks": True, "controls": "\x80" * 500_000}, "asks")
    found.serve(found.app, *apps)
    gc.collect()
    gc.freeze()  # a full collection of what pytest has takes long enough to be seen
    yield found
    found.close()


BODIES: dict[str, Any] = {
    "AgentInput": {"threadId": "new", "runId": "r", "messages": [], "state": {"n": 1}},
    "AnswersRequest": {"answers": {"x": [[1]] * 100_000}},
    "AssistantsRequest": {},
    "BulkRequest": {"status": "failed", "graph": "heavy"},
    "CheckpointRequest": {"checkpoint": {"checkpoint_id": "1"}},
    "ForkRequest": {"at": 1, "as_thread": "copy"},
    "HistoryRequest": {"limit": 1000},
    "MessageRequest": {"value": ["\x80" * 100] * 5000},
    "RetryRequest": {},
    "RunInput": {"assistant_id": "heavy", "input": {"n": 1}},
    "RunRequest": {"graph": "heavy", "input": {"lines": ["\x80" * 100] * 1000}},
    "SearchRequest": {"limit": 1000},
    "StateUpdate": {"values": {"lines": ["\x80" * 100] * 1000}},
    "TagRequest": {"add": ["eu"]},
    "ThreadInput": {},
    "UpdateRequest": {"update": {"lines": ["\x80" * 100] * 1000}},
}
FORMS: dict[str, Any] = {
    "ActionForm": {"thread": "t"},
    "AnswerForm": {"question": "x", "field": "", "value": "\x80" * 50_000},
    "BulkForm": {"status": "failed", "graph": "heavy"},
    "ChatForm": {"message": "\x80" * 50_000},
    "ColoursForm": {"colours": "dark"},
    "DiscardForm": {"number": "1"},
    "ForkForm": {"at": "1", "as_thread": "copied"},
    "InboxForm": {"question": "asks/x", "kind": "x", "field": "", "value": "\x80" * 50_000},
    "LimitForm": {"action": "pause", "graph": "heavy"},
    "LoginForm": {"token": "x"},
    "LogoutForm": {},
    "ScheduleForm": {"action": "pause", "graph": "heavy", "name": "none"},
    "StartForm": {"thread": "t", "field": "n", "value": "\x80" * 50_000},
    "TagForm": {"add": "eu"},
    "ViewForm": {"name": "x" * 40},
    "UpdateForm": {"update": json.dumps({"lines": ["\x80" * 100] * 500})},
}
LINES: list[Endpoint | WebPage] = [*ENDPOINTS, *CHAT, *PAGES]
LAST = {"DELETE /v1/threads/{thread}", "DELETE /langgraph/threads/{thread}"}
"""Asked last: the threads are gone afterwards."""


def name_of(line: Endpoint | WebPage) -> str:
    return line.name


LINES.sort(key=lambda one: name_of(one) in LAST)

STREAMING = {
    "GET /v1/threads/{thread}/events",
    "GET /langgraph/threads/{thread}/runs/{run}/stream",
}


class Blocked:
    """Measures the longest time for which the loop does not turn."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        wall, process = perf_counter(), process_time()
        while True:
            await asyncio.sleep(0.001)
            now, used = perf_counter(), process_time()
            self.longest = max(self.longest, min(now - wall, used - process))
            wall, process = now, used


@asynccontextmanager
async def watched() -> AsyncGenerator[Blocked, None]:
    blocked = Blocked()
    watching = asyncio.create_task(blocked.watch())
    await asyncio.sleep(0.01)
    try:
        yield blocked
        await asyncio.sleep(0.01)
    finally:
        watching.cancel()


async def request(
    api: Api, method: str, path: str, body: bytes = b"", kind: str = "", accept: str = "*/*"
) -> tuple[int, int]:
    """The status and the size of an answer; a stream is left when its thread rests."""
    place, _, query = path.partition("?")
    sent = {
        "host": ADDRESS.removeprefix("http://"),
        "authorization": f"Bearer {token_of('default')}",
        "content-type": kind,
        "origin": ADDRESS,
        "accept": accept,
    }
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": place,
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "scheme": "http",
        "headers": [(name.encode(), text.encode()) for name, text in sent.items()],
    }
    left, given = asyncio.Event(), [body]
    found = [0, 0]

    async def receive() -> MutableMapping[str, Any]:
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        found[0] = message.get("status", found[0])
        part = message.get("body", b"")
        found[1] += len(part)
        if accept == "text/event-stream" and (b"event: stopped" in part[:100] or b"part" in part):
            left.set()
        if b"event: end" in part[:100] or b"RUN_FINISHED" in part[:100]:
            left.set()

    loop = asyncio.get_running_loop()
    loop.call_later(PATIENCE, left.set)  # nobody runs what was submitted
    async with asyncio.timeout(60):
        await api.application(scope, receive, send)
    return found[0], found[1]


def requests_of(line: Endpoint | WebPage, thread: str) -> tuple[str, str, bytes, str]:
    """A request for a line of a table."""
    names = {"thread": thread, "graph": "large", "run": "r", "job": "j", "checkpoint": "1"}
    path = line.path.format(**names, file="style.css")
    path += "?a=1&b=2" if path.endswith("/diff") else ""
    path += "?limit=1000" if path.endswith("/history") and line.method == "GET" else ""
    if isinstance(line, WebPage) and line.form is not None:
        headers = Headers({"authorization": f"Bearer {token_of('default')}"})
        fields = {"csrf": csrf_token(headers), **FORMS[line.form.__name__]}
        form = urlencode(fields).encode()
        return line.method, path, form, "application/x-www-form-urlencoded"
    if isinstance(line, Endpoint) and line.body is not None:
        body = json.dumps(BODIES[line.body.__name__], ensure_ascii=False).encode()
        return line.method, path, body, "application/json"
    return line.method, path, b"", ""


def blocked_by(api: Api, line: Endpoint | WebPage, thread: str) -> tuple[float, int]:
    """For how long a request blocks the loop, and its status."""
    method, path, body, kind = requests_of(line, thread)
    accept = "text/event-stream" if line.name in STREAMING else "*/*"

    async def ask() -> tuple[float, int]:
        async with watched() as blocked:
            status, _ = await request(api, method, path, body, kind, accept)
        return blocked.longest, status

    return api.run_on_loop(ask())


@pytest.mark.parametrize("line", LINES, ids=name_of)
def test_no_route_and_no_page_blocks_the_loop(api: Api, line: Endpoint | WebPage) -> None:
    """One GET of 12 MB took 24 s, and a drawing of 1,000 nodes more than 200 s."""
    threads = ("t", "asks", "long") if "{thread}" in line.path else ("t",)
    for thread in threads:
        longest, status = blocked_by(api, line, thread)
        for _ in range(4):  # threads of a busy machine may be late once; our own work always is
            if longest >= MOST:
                longest, status = blocked_by(api, line, thread)
        assert status < 500 or status == 503, (thread, status)
        assert longest < MOST, thread
