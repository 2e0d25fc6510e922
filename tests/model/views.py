"""A thread in every view: ``state``, ``threads``, its runs, the API and the page of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from milecastle import App
from milecastle.app.upkeep.verifying import verify_thread
from milecastle.model.children import Parent
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.claims import waiting_inputs
from milecastle.server import asgi
from milecastle.server.identity import Identity
from tests.model.callers import applied, names_of
from tests.model.graphs import State
from tests.model.history import Seen
from tests.model.remembering import Shown, recall, shown

__all__ = ["look", "parent_of", "remembered", "served", "unended"]


def look(app: App[State], store: Any, key: ThreadKey, *, reverted: bool) -> Seen:
    """A thread as the library shows it; ``reverted`` if a run may have been taken back."""
    found, archives = app.state(key), app.store.archive is not None
    info = store.thread(key)
    listed = {one.key: one.status for one in app.threads(tenant=key.tenant)}
    runs = list(store.runs(key))
    named = {run.run_id: run.status for run in runs}
    seqs = [each.seq for each in app.history(key)] if reverted else []
    states = [found.state, *(app.state(key, seq).state for seq in seqs)]
    return Seen(
        log=found.state.get("log", []),
        heard=found.state.get("heard", []),
        mixed=found.state.get("mixed", []),
        applied=applied(found.state),
        ever=tuple(name for state in states for name in applied(state)),
        unread=names_of(app.mailbox(key)),
        damage=[str(one) for one in verify_thread(app.store, key).findings] if archives else (),
        wrote=[*{text: None for state in states for text in state.get("wrote", [])}],
        runs=runs,
        waiting=[one.mark for one in waiting_inputs(store, key)],
        statuses={
            "state": found.status,
            "threads": listed.get(key, "missing"),
            "runs": named.get(info.run_id, "missing"),
        },
    )


def remembered(app: App[State], tenants: Iterable[str]) -> dict[str, Shown]:
    """The items of some tenants, as ``list``, ``search`` and ``get`` show them."""
    found: dict[str, Shown] = {}
    for tenant in tenants:
        memory = app.memory.for_tenant(tenant)
        found[tenant] = recall(memory)
        items = [hit.item for hit in memory.search(limit=1000)]
        again = shown(memory.get(one.namespace, one.key) for one in items)
        assert shown(items) == again == found[tenant], (tenant, found[tenant], again)
    return found


def parent_of(store: Any, info: ThreadInfo) -> RunRecord | None:
    """The run that started a child, if a cancellation of it cancels the child."""
    found = Parent.of(store.run(info.key, info.run_id))
    if found is None or found.stays:
        return None
    record: RunRecord | None = store.run(ThreadKey(info.key.tenant, found.thread), found.run_id)
    return record


def unended(info: ThreadInfo) -> str:
    """Why a child has not ended, or has not told its parent; empty if it has."""
    is_over = info.status in ("completed", "cancelled", "failed")
    is_quiet = info.due_at is None and not info.worker
    return "" if is_over and is_quiet else f"{info.key.thread} {info.status}, due {info.due_at}"


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
