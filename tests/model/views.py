"""A thread in every view: ``state``, ``threads``, its runs, the API and the page of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from milecastle import App
from milecastle.model.keys import ThreadKey
from milecastle.server import asgi
from milecastle.server.identity import Identity
from tests.model.graphs import State
from tests.model.specification import Seen

__all__ = ["look", "served"]


def look(app: App[State], store: Any, key: ThreadKey) -> Seen:
    """A thread as the library shows it."""
    found = app.state(key)
    info = store.thread(key)
    listed = {one.key: one.status for one in app.threads(tenant=key.tenant)}
    runs = list(store.runs(key))
    named = {run.run_id: run.status for run in runs}
    return Seen(
        log=found.state.get("log", []),
        heard=found.state.get("heard", []),
        runs=runs,
        waiting=[one.run_id for one in store.inputs(key)],
        statuses={
            "state": found.status,
            "threads": listed.get(key, "missing"),
            "runs": named.get(info.run_id, "missing"),
        },
    )


def served(apps: Sequence[App[State]], seen: dict[ThreadKey, Seen]) -> None:
    """Add what a server shows of these threads to their statuses."""
    for tenant in {key.tenant for key in seen}:
        own = {key: each for key, each in seen.items() if key.tenant == tenant}
        asyncio.run(_served(apps, tenant, own))


async def _served(apps: Sequence[App[State]], tenant: str, seen: dict[ThreadKey, Seen]) -> None:
    server = asgi(
        *apps, worker=False, identify=lambda headers: Identity(tenant, frozenset({"read"}))
    )
    listed = json.loads(await _get(server, "/v1/threads"))["threads"]
    statuses = {line["thread"]: line["status"] for line in listed}
    for key, each in seen.items():
        shown: Any = each.statuses
        name = quote(key.thread, safe="")
        shown["list of the API"] = statuses.get(key.thread, "missing")
        shown["API"] = json.loads(await _get(server, f"/v1/threads/{name}"))["status"]
        page = await _get(server, f"/threads/{name}")
        shown["page"] = shown["state"] if shown["state"].encode() in page else "another"


async def _get(server: Any, path: str) -> bytes:
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    await server(scope, receive, send)
    assert said[0]["status"] == 200, said
    return b"".join(message.get("body", b"") for message in said[1:])
