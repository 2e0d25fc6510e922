"""A server without a network: requests are given to the ASGI application in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, MutableMapping
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import httpx
import jinja2
import msgspec

from milecastle import END, START, App, StateGraph, append, interrupt
from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.server.access import Access, Identify
from milecastle.server.application import Application
from milecastle.server.chat.table import CHAT
from milecastle.server.identity import ALL_SCOPES, Identity, TokenScope
from milecastle.server.pages import rendering
from milecastle.server.problems import ProblemDocument
from milecastle.server.redaction import Redact
from milecastle.server.request import Endpoint
from milecastle.server.routes import ENDPOINTS
from milecastle.server.service import Service
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore

T = TypeVar("T")

QUICK = WorkerOptions(poll=0.05, heartbeat=0.2, silent_after=30.0)
ADDRESS = "http://127.0.0.1:8321"
OTHER = "another"
"""A tenant that has nothing."""


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]
    sure: NotRequired[bool]


def begin(state: Trip) -> dict[str, Any]:
    if state["n"] == 13:
        raise RuntimeError("no ink")
    return {"n": state["n"] + 1, "log": ["begin"]}


def ask(state: Trip) -> dict[str, Any]:
    if not interrupt("sure?", answer=bool):
        raise RuntimeError("not sure")
    return {"sure": True, "log": ["ask"]}


def build(name: str = "trip") -> StateGraph[Trip]:
    """A graph that fails for 13, asks for 42, and ends for anything else."""
    graph: StateGraph[Trip] = StateGraph(Trip, name=name)
    graph.add_node("begin", begin)
    graph.add_node("ask", ask)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges(
        "begin", lambda state: "asks" if state["n"] == 43 else "ends", {"asks": "ask", "ends": END}
    )
    graph.add_edge("ask", END)
    return graph


def trip(n: int = 1) -> dict[str, Any]:
    """The body of a request for a run."""
    return {"input": {"n": n, "log": []}}


def token_of(tenant: str, *scopes: TokenScope) -> str:
    """The token of a tenant with these scopes; with all of them if none is named."""
    named: list[str] = sorted(scopes)
    return "-".join([tenant, *(named or ["all"]), "x" * 32])


def known_tokens() -> list[tuple[str, Identity]]:
    found = [(token_of(tenant), Identity(tenant, ALL_SCOPES)) for tenant in ("default", OTHER)]
    found.append((token_of("default", "read"), Identity("default", frozenset({"read"}))))
    for scope in ALL_SCOPES:
        others = ALL_SCOPES - {scope}
        found.append((token_of("default", *others), Identity("default", others)))
    return found


@cache
def empty_store() -> bytes:
    """A store that is migrated once for all tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        SqliteStore(path).close()
        return path.read_bytes()


class Templates(jinja2.BytecodeCache):
    """Compiled once for all tests: that takes five times as long as rendering a page."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Any) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Any) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


setattr(rendering, "Environment", partial(jinja2.Environment, bytecode_cache=Templates()))  # noqa: B010


class Api:
    """A store in a folder, an app on it, and the application that serves it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.keys = folder, MemoryStore()
        path = folder / "runs.db"
        if not path.exists():
            path.write_bytes(empty_store())
        self.app: App[Trip] = build().compile(store=f"sqlite:///{path}", **settings)
        self._runner = asyncio.Runner()
        self.serve(self.app)

    def serve(
        self,
        *apps: App[Any],
        hosts: Collection[str] = ("known.example",),
        redact: Redact | None = None,
        identify: Identify | None = None,
    ) -> None:
        """Serve these from now on."""
        start = ("start" * 10, Identity("default", ALL_SCOPES))
        access = Access(known_tokens(), start, identify=identify)
        service = Service(apps, worker=False, redact=redact)
        self.application = Application(service, access, hosts)

    def close(self) -> None:
        self.app.close()
        self._runner.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        token: str | None = token_of("default"),
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Send one request. What is answered must be as the table of routes says."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        response = self.send(method, path, sent, **more)
        check_documented(response)
        return response

    def send(
        self, method: str, path: str, headers: Mapping[str, str], **more: Any
    ) -> httpx.Response:
        """Send one request as it is."""
        return self._runner.run(self._ask(method, path, headers, more))

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str], more: dict[str, Any]
    ) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.application)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            return await client.request(method, path, headers=headers, **more)

    def follow(
        self,
        path: str,
        *,
        token: str = token_of("default"),
        accept: str = "*/*",
        cookie: str = "",
        body: Any = None,
        is_enough: Callable[[str], bool] = lambda text: "event: stopped" in text,
    ) -> str:
        """The text of a stream until it is enough, or of what is answered in its place.

        With a body, it is that of a POST.
        """
        who = {"cookie": cookie} if cookie else {"authorization": f"Bearer {token}"}
        sent = {"host": ADDRESS.removeprefix("http://"), "accept": accept, **who}
        sent |= {} if body is None else {"content-type": "application/json"}
        headers = [(name.encode(), value.encode()) for name, value in sent.items()]
        return self._runner.run(self._follow(path, headers, body, is_enough))

    async def _follow(
        self,
        path: str,
        headers: list[tuple[bytes, bytes]],
        body: Any,
        is_enough: Callable[[str], bool],
    ) -> str:
        found, left = bytearray(), asyncio.Event()
        method, unsent = ("GET", []) if body is None else ("POST", [msgspec.json.encode(body)])
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}

        async def receive() -> MutableMapping[str, Any]:
            if unsent:
                return {"type": "http.request", "body": unsent.pop()}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            found.extend(message.get("body", b""))
            if is_enough(found.decode()):
                left.set()

        scope |= {"query_string": b"", "headers": headers}
        await asyncio.wait_for(self.application(scope, receive, send), 60)
        return found.decode()

    def stall(self, path: str, *, accept: str, at: str) -> None:
        """Read a stream up to a text, which is not taken; return when the server gives up."""
        self._runner.run(self._stall(path, accept, at))

    async def _stall(self, path: str, accept: str, at: str) -> None:
        sent = {"host": "localhost", "authorization": f"Bearer {token_of('default')}"}
        headers = [
            (name.encode(), value.encode()) for name, value in {**sent, "accept": accept}.items()
        ]
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}

        async def never(message: MutableMapping[str, Any] | None = None) -> Any:
            if message is None or at.encode() in message.get("body", b""):
                await asyncio.Event().wait()

        scope |= {"query_string": b"", "headers": headers}
        await asyncio.wait_for(self.application(scope, never, never), 60)

    def work(self, *apps: App[Any]) -> None:
        """Run everything that is due, of these apps or of ours."""
        self._runner.run(Worker(apps or [self.app], QUICK).run_until_idle())

    def run_on_loop(self, doing: Coroutine[Any, Any, T]) -> T:
        """Await something on the loop on which requests are answered."""
        return self._runner.run(doing)

    def run(self, thread: str, n: int = 1) -> None:
        """Bring a thread to its rest."""
        response = self.ask("POST", f"/v1/threads/{thread}/runs", json=trip(n))
        assert response.status_code == 202, response.text
        self.work()


def endpoint_of(method: str, path: str) -> Endpoint | None:
    """The line of the table of routes that a request meets."""
    parts = path.split("/")
    for endpoint in (*ENDPOINTS, *CHAT):
        wanted = endpoint.path.split("/")
        fits = len(wanted) == len(parts) and all(
            one == other or one.startswith("{") for one, other in zip(wanted, parts, strict=True)
        )
        if endpoint.method == method and fits:
            return endpoint
    return None


def check_documented(response: httpx.Response) -> None:
    """Refuse an answer with a status, a type or a field that is not documented."""
    request = response.request
    endpoint = endpoint_of(request.method, request.url.raw_path.decode().partition("?")[0])
    status, kind = response.status_code, response.headers.get("content-type", "")
    assert response.headers["x-content-type-options"] == "nosniff"
    if request.method == "HEAD":
        return
    if kind == "application/problem+json":
        problem = msgspec.json.decode(response.content, type=ProblemDocument)
        assert problem.status == status
        assert endpoint is None or status in endpoint.all_problems, (endpoint.name, response.text)
        return
    assert endpoint is not None
    document = endpoint.answers[status]
    if isinstance(document, type):
        msgspec.json.decode(response.content, type=document)
