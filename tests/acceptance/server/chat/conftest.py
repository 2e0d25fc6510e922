"""What the tests of chat front ends get: a server in a thread, where it is traced for coverage."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread

import httpx
import pytest
import uvicorn

from milecastle.server.application import Application, assemble
from milecastle.server.serving import ListeningSocket, listen, serve
from milecastle.server.tokens import new_secret
from tests.acceptance.server.chat.graphs import build
from tests.acceptance.server.processes import LIMIT, Served, is_ready
from tests.postgres_cluster import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for each file: a test that is not traced ends tracing in all threads."""
    token, listening = new_secret(), listen("127.0.0.1", 0)
    headers = {"Authorization": f"Bearer {token}"}
    url = f"http://{listening.address}/"
    store = f"sqlite:///{tmp_path_factory.mktemp('chat') / 'runs.db'}"
    with closing(build().compile(store=store)) as app:
        application = assemble([app], tokens=None, token=token, hosts=[], worker=None)
        client = httpx.Client(base_url=url, headers=headers, timeout=LIMIT)
        with serving(application, listening), client:
            wait_until(lambda: is_ready(client), LIMIT)
            yield Served(client)


@contextmanager
def serving(application: Application, listening: ListeningSocket) -> Generator[None, None, None]:
    """Serve in a thread while the block runs: there it gets no signal, so that it is asked here."""
    stop, honest = Event(), uvicorn.Server.on_tick

    async def on_tick(server: uvicorn.Server, counter: int) -> bool:
        return stop.is_set() or await honest(server, counter)

    thread = Thread(target=lambda: asyncio.run(serve(application, listening)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "on_tick", on_tick)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
