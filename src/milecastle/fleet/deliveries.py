"""Deliveries: each hook's notice is sent by a durable run, until it is accepted.

Rules:

- A delivery is a run with ``app/deliveries.py``'s graph in a thread named after its hook and its
  run, or question. That name is the ``webhook-id`` in every attempt, so a receiver drops repeats.
- It stores names and numbers only. The body is made from the thread whenever it is sent.
- 2xx ends it, and so does 410. Anything else is repeated after each of ``DELAYS``; in between the
  run sleeps and holds no slot. Then it fails, is listed, and can be retried. An attempt that cannot
  read the thread counts as one that was not accepted.
- A question answered meanwhile is not sent.
- A crash between the answer and the commit sends it again, with the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from milecastle.app.application import App
from milecastle.app.deliveries import DELAYS, DeliveryState, delivery_graph
from milecastle.app.runner import Runner
from milecastle.app.runs.submission import require_shared
from milecastle.codec.answers import as_plain
from milecastle.engine.context import Context
from milecastle.errors import InvalidRequest, MilecastleError, StoreError
from milecastle.fleet.posting import NotPosted, post
from milecastle.graph.hooks import Webhook
from milecastle.model.checkpoint import to_datetime
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.webhooks import read_secrets, sign
from milecastle.version import __version__

_SECOND: Final = 1_000_000
_LARGEST_VALUE: Final = 256 * 1024
_GONE: Final = 410


class DeliveryFailed(Exception):
    pass


def delivering(apps: Iterable[App[Any]], deliver_to: Collection[str] = ()) -> list[Runner[Any]]:
    """Runners for all hooks of some apps.

    Raises:
        InvalidRequest: two of a name have the same hook, or the environment lacks what one names.
    """
    runners = [runner for app in apps for runner in Deliveries(app, deliver_to).runners()]
    names = [runner.graph.name for runner in runners]
    for name in names:
        if names.count(name) > 1:
            hook = name.partition("@@")[2]
            raise InvalidRequest(f"two graphs of this name have the hook '{hook}': rename one")
    return runners


class Deliveries:
    def __init__(self, app: App[Any], deliver_to: Collection[str] = ()) -> None:
        self._app = app
        self._deliver_to = deliver_to
        self._store = require_shared(app.runner.settings.store)

    def runners(self) -> Iterator[Runner[Any]]:
        """Runners for its hooks.

        Raises:
            InvalidRequest: the environment lacks a variable that a hook names.
        """
        for hook in self._app.graph.hooks:
            self._read_environment(hook)
            yield self._app.runner.delivering(delivery_graph(hook, partial(self.deliver, hook)))

    def _read_environment(self, hook: Webhook) -> list[bytes]:
        hook.target  # noqa: B018 - it raises
        return read_secrets(hook.secrets, f"hook '{hook.name}'")

    async def deliver(self, hook: Webhook, state: DeliveryState, ctx: Context) -> dict[str, Any]:
        own = ctx.thread
        if own is None:
            raise AssertionError("a delivery has a thread")
        try:
            data = await self._app.runner.off_loop(self._data, hook, own.tenant, state)
        except StoreError as error:
            answer = f"its thread could not be read ({type(error).__name__})"
        else:
            if data is None:
                return {"outcome": "closed"}
            answer = await self._post(hook, own.thread, state["event"], data)
        if answer.isdigit() and (200 <= int(answer) < 300 or int(answer) == _GONE):
            outcome = "gone" if int(answer) == _GONE else "delivered"
            return {"outcome": outcome, "answer": answer}
        if state["attempt"] < len(DELAYS):
            return {"attempt": state["attempt"] + 1, "answer": answer}
        raise DeliveryFailed(
            f"hook '{hook.name}' accepted none of {len(DELAYS) + 1} attempts; of the last: {answer}"
        )

    async def _post(self, hook: Webhook, id: str, event: str, data: dict[str, Any]) -> str:
        now = self._app.runner.settings.clock.now() // _SECOND
        body = msgspec.json.encode({"type": event, "timestamp": data["time"], "data": data})
        try:
            keys = self._read_environment(hook)
            headers = {
                "content-type": "application/json",
                "user-agent": f"milecastle/{__version__}",
                "webhook-id": id,
                "webhook-timestamp": str(now),
                "webhook-signature": sign(keys, id, now, body),
            }
            return str(await post(hook.target, headers, body, deliver_to=self._deliver_to))
        except (NotPosted, InvalidRequest) as error:
            return error.message

    def _data(self, hook: Webhook, tenant: str, state: DeliveryState) -> dict[str, Any] | None:
        key = ThreadKey(tenant, state["thread"])
        record = self._store.run(key, state["run_id"])
        asked = self._open_question(key, state["question"]) if state["question"] else None
        if record is None or (state["question"] and asked is None):
            return None
        time = record.ended_at or self._store.now()
        data: dict[str, Any] = {
            "tenant": tenant,
            "thread": key.thread,
            "graph": record.graph,
            "run": record.run_id,
            "seq": state["seq"],
            "time": to_datetime(time).isoformat(),
        }
        if state["event"] == "failed":
            data["error_type"], data["node"] = record.cause or (None, None)
            if "error" in hook.include:
                failure = self._store.failure(key, record.run_id)
                data["error"] = failure and _bounded(failure.message)
        if asked is not None:
            data["question_id"], data["node"] = asked.id, asked.node
            if "question" in hook.include:
                shown = {"question": asked.question, "show": asked.show, "answer": asked.answer}
                data |= {name: _bounded(value) for name, value in shown.items()}
        if "state" in hook.include:
            data["state"] = self._state(key, state["seq"])
        return data

    def _open_question(self, key: ThreadKey, id: str) -> Interrupt | None:
        try:
            snapshot = self._app.state(key)
        except InvalidRequest:  # it was deleted
            return None
        if snapshot.status == "cancelled":
            return None
        return next((one for one in snapshot.interrupts if one.id == id), None)

    def _state(self, key: ThreadKey, seq: int) -> Any:
        try:
            return _bounded(self._app.state(key, at=seq).state)
        except InvalidRequest:  # it was pruned
            return None


def _bounded(value: Any) -> Any:
    """A value as plain data; ``None`` if it cannot be that, or is over 256 KiB."""
    try:
        plain = as_plain(value)
        return plain if len(msgspec.json.encode(plain)) <= _LARGEST_VALUE else None
    except (MilecastleError, TypeError, ValueError, RecursionError):
        return None
