"""Readers of events that come and go while their server is killed; a judge who compares.

Each reader follows one run over a raw socket, leaves after a few events, and comes back with the id
of the last one. Meanwhile the server is killed with SIGKILL and another is started on its port. In
the end a reader must have exactly what was committed, each checkpoint once and in order; the judge
reads that from the store itself.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import httpx
import msgspec

from milecastle import open_store
from milecastle.model.keys import ThreadKey
from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import LIMIT, REFERENCE, Process, is_ready
from tests.postgres_cluster import free_port, wait_until

TENANT = "acme"
TOKEN = "a token for readers of events, and for runs"
TOKENS = f'[[token]]\ntoken = "{TOKEN}"\ntenant = "{TENANT}"\nscopes = ["read", "run"]\n'

Seen = tuple[int, int, str]
"""A checkpoint: its seq, step and run."""


class Scale(msgspec.Struct, frozen=True):
    """How much happens. A reader leaves after at most so many events."""

    readers: int = 24
    runs: int = 6
    steps: int = 20
    kills: int = 1
    stay: int = 6
    pause: float = 0.05
    seconds: float = 240.0


FULL = Scale(1000, 100, 150, 8, 20, 0.2, 1800.0)


class Outcome(msgspec.Struct):
    """What the readers got. ``wrong`` are events that were not committed, or came out of order."""

    readers: int
    committed: int
    reconnects: int = 0
    kills: int = 0
    missed: int = 0
    doubled: int = 0
    wrong: int = 0

    @property
    def is_good(self) -> bool:
        return not (self.missed or self.doubled or self.wrong)


class Reader:
    """One reader of one run, for as long as it takes."""

    def __init__(self, port: int, thread: str, stay: int, seed: int) -> None:
        self._port = port
        self._stay = stay
        self._chance = random.Random(seed)
        self.thread = thread
        self.seen: list[Seen] = []
        self.reconnects = 0
        self._has_all = False

    async def read(self) -> None:
        """Read until the run has ended, however often the server is gone meanwhile."""
        while not self._has_all:
            try:
                async with asyncio.timeout(LIMIT):
                    await self._visit()
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await asyncio.sleep(self._chance.uniform(0.05, 0.3))

    async def _visit(self) -> None:
        left = self._chance.randint(1, self._stay)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        try:
            writer.write(self._request())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                raise OSError(head[:60])
            self.reconnects += bool(self.seen)
            async with aclosing(_blocks(reader)) as blocks:
                async for name, data in blocks:
                    if name == "stopped" and data["thread"]["status"] == "completed":
                        self._has_all = True
                        return
                    if name == "state":
                        self.seen.append((data["seq"], data["step"], data["run_id"]))
                        left -= 1
                    if not left:
                        return
        finally:
            writer.transport.abort()

    def _request(self) -> bytes:
        last = f"Last-Event-ID: {self.seen[-1][0]}\r\n" if self.seen else ""
        return (
            f"GET /v1/threads/{self.thread}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {TOKEN}\r\n{last}\r\n"
        ).encode()


async def _blocks(reader: asyncio.StreamReader) -> AsyncGenerator[tuple[str, Any], None]:
    """The complete events of a chunked response; comments are left out."""
    text = b""
    while size := int(await reader.readline() or b"0", 16):
        text += (await reader.readexactly(size + 2))[:-2]
        *complete, text = text.split(b"\n\n")
        for block in complete:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line[:1] != b":")
            if data := fields.get(b"data"):
                found = msgspec.json.decode(data)
                if b"id" in fields and int(fields[b"id"]) != found["seq"]:
                    raise AssertionError("an event has the id of another")
                yield fields[b"event"].decode(), found
    raise OSError("the stream has ended")


class Streams:
    """A server on a store, with its worker or with one in another process."""

    def __init__(self, store: str, folder: Path, scale: Scale, how: str) -> None:
        self._store = store
        self._scale = scale
        self._how = f"{how},hasty"
        self._port = free_port()
        self._tokens = folder / "tokens.toml"
        self._tokens.write_text(TOKENS, encoding="utf-8")
        self._tokens.chmod(0o600)
        self._server: Process | None = None

    def start(self) -> None:
        arguments = ["serve", REFERENCE, "--store", self._store, "--port", str(self._port)]
        arguments += ["--tokens", str(self._tokens)]
        self._server = Process(*arguments, how=self._how)
        self._server.said(r"serving journey on")
        with self._client() as client:
            wait_until(lambda: is_ready(client), LIMIT)

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()

    def _client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=LIMIT
        )

    def submit(self) -> None:
        body = journey(self._scale.steps, pause=self._scale.pause)
        with self._client() as client:
            for number in range(self._scale.runs):
                response = client.post(f"/v1/threads/run{number}/runs", json=body)
                assert response.status_code == 202, response.text

    async def read(self) -> tuple[list[Reader], int]:
        """Let the readers read, and kill the server now and then; how often it was killed."""
        scale = self._scale
        readers = [
            Reader(self._port, f"run{number % scale.runs}", scale.stay, number)
            for number in range(scale.readers)
        ]
        tasks = [asyncio.create_task(one.read()) for one in readers]
        every = scale.readers * scale.steps // (scale.kills + 1)
        kills = 0
        async with asyncio.timeout(scale.seconds):
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=0.1)
                if kills < scale.kills and sum(len(one.seen) for one in readers) > every * (
                    kills + 1
                ):
                    kills += 1
                    await asyncio.to_thread(self.kill)
                    await asyncio.to_thread(self.start)
        await asyncio.gather(*tasks)
        return readers, kills


def prove(
    store: str, folder: Path, scale: Scale, *, how: str = "honest", worker: bool = False
) -> Outcome:
    """Let readers follow runs on a store; ``worker`` runs them in a process of its own."""
    streams, others = Streams(store, folder, scale, how), list[Process]()
    try:
        streams.start()
        streams.submit()
        if worker:
            others.append(Process("worker", REFERENCE, "--store", store))
        readers, kills = asyncio.run(streams.read())
    finally:
        streams.kill()
        for process in others:
            process.kill()
    return judge(store, readers, kills)


def judge(store: str, readers: list[Reader], kills: int) -> Outcome:
    """Compare what each reader got with the log of its run."""
    logs: dict[str, list[Seen]] = {}
    with closing(open_store(store)) as opened:
        for thread in {one.thread for one in readers}:
            entries = opened.store.entries(ThreadKey(TENANT, thread), after=0, limit=1_000_000)
            logs[thread] = [(one.seq, one.step, one.run_id) for one in entries]
    outcome = Outcome(len(readers), sum(map(len, logs.values())), kills=kills)
    for reader in readers:
        log, got = logs[reader.thread], Counter(reader.seen)
        unique = list(got)
        outcome.reconnects += reader.reconnects
        outcome.missed += len(set(log) - set(unique))
        outcome.doubled += len(reader.seen) - len(unique)
        outcome.wrong += len(set(unique) - set(log)) + (unique != sorted(unique))
    return outcome
