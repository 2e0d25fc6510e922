"""OpenAI Agents SDK: sessions, run states, recorded calls. Needs the extra ``openai-agents``.

Rules:

- A session is a thread; each change is one commit following the head it has read. A writer that
  lost the race reads again: no item is lost, and none is returned by two ``pop_item``.
- In a node, a session is read as the node saw it first, and a change is made once: its checkpoint
  carries the task's mark, by which a node running again finds its change.
- Everything is stored as plain data; nothing that is read is imported or called.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from hashlib import sha256
from typing import Any, Final, cast

from agents import Agent, FunctionTool, Model, ModelResponse, RunState, TResponseInputItem
from agents.memory import SessionSettings
from pydantic import TypeAdapter

from milecastle.app.checkpoints import CheckpointStore
from milecastle.engine.context import current, running_task
from milecastle.errors import Conflict, InvalidRequest
from milecastle.integrations.recording import enclosing_call, recorded
from milecastle.model.keys import ThreadKey, own_key
from milecastle.support.off_loop import off_loop

__all__ = ["RecordedModel", "RunStates", "ThreadSession", "record_tool"]

SessionItems = list[TResponseInputItem]
SessionChange = Callable[[SessionItems], tuple[SessionItems, TResponseInputItem | None]]
"""From the items of a session to its new items, and what the caller gets."""

_RESPONSE: Final = TypeAdapter(ModelResponse)


class ThreadSession:
    """An SDK ``Session`` in the store's thread ``session@@<session_id>``."""

    def __init__(
        self,
        session_id: str,
        store: CheckpointStore,
        *,
        tenant: str = "default",
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self._store = store
        self._key = own_key(tenant, "session", session_id)
        self._name = f"session {session_id}"

    async def get_items(self, limit: int | None = None) -> SessionItems:
        """The items, oldest first; with ``limit``, the newest of them."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit

        async def head() -> str | None:
            return await off_loop(self._head_id)

        seen = await (head() if running_task() is None else recorded(f"{self._name} read", head))
        items = await off_loop(self._items_at, seen)
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: SessionItems) -> None:
        """Append items."""
        await self._change(lambda old: (old + items, None))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; ``None`` if there is none."""
        return await self._change(lambda old: (old[:-1], old[-1] if old else None))

    async def clear_session(self) -> None:
        """Remove all items. The thread's log still has them: ``delete_thread`` removes it."""
        await self._change(lambda old: ([], None))

    async def _change(self, change: SessionChange) -> TResponseInputItem | None:
        if running_task() is None:
            return await off_loop(self._commit, change)
        ctx = current()
        place = f"{enclosing_call.get()}/{self._name}"
        since: Any = await ctx.aonce(f"{place} since", off_loop, self._head_seq)
        mark = f"{ctx.idempotency_key}{place}#{ctx.counts.get(f'{place} write', 0)}"

        async def commit() -> TResponseInputItem | None:
            return await off_loop(self._commit, change, mark, since)

        return await recorded(f"{place} write", commit)

    def _commit(
        self, change: SessionChange, mark: str = "", since: int = 0
    ) -> TResponseInputItem | None:
        while True:
            head = self._store.get_latest(self._key)
            old: SessionItems = head.state["items"] if head else []
            done, before = self._found(mark, since) if mark else (False, None)
            new, result = change(self._items_at(before) if done else old)
            if done or new == old:
                return result
            try:
                self._store.__put__(
                    self._key,
                    {"items": new},
                    nodes=(mark,) if mark else (),
                    head=head.seq if head else 0,
                    delta=True,
                )
            except Conflict:
                continue
            return result

    def _found(self, mark: str, since: int) -> tuple[bool, str | None]:
        for entry in self._store.list_history(self._key):
            if entry.seq <= since:
                break
            if mark in entry.nodes:
                return True, entry.parent_id
        return False, None

    def _items_at(self, checkpoint_id: str | None) -> SessionItems:
        if checkpoint_id is None:
            return []
        found = self._store.get_by_id(self._key, checkpoint_id)
        return found.state["items"] if found else []

    def _head_id(self) -> str | None:
        return next((entry.id for entry in self._store.list_history(self._key, limit=1)), None)

    def _head_seq(self) -> int:
        return next((entry.seq for entry in self._store.list_history(self._key, limit=1)), 0)


class RunStates:
    """Run states awaiting approval, each in the thread ``run@@<name>``."""

    def __init__(self, store: CheckpointStore, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant

    async def save(self, name: str, state: RunState[Any, Any]) -> None:
        """Store a run state, durably; it replaces the one before."""
        await self._put(name, state.to_json(strict_context=True))

    async def load(self, name: str, agent: Agent[Any]) -> RunState[Any, Any] | None:
        """The last saved run state; ``None`` if there is none."""
        found = await off_loop(self._store.get_latest, self._key(name))
        state = found.state["state"] if found else None
        return None if state is None else await RunState.from_json(agent, state)

    async def clear(self, name: str) -> None:
        """Forget the run state: its run is over."""
        await self._put(name, None)

    async def _put(self, name: str, state: dict[str, Any] | None) -> None:
        await off_loop(self._store.__put__, self._key(name), {"state": state})

    def _key(self, name: str) -> ThreadKey:
        return own_key(self._tenant, "run", name)


class RecordedModel(Model):
    """A model whose responses are recorded when an agent runs in a node."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        call = partial(self._model.get_response, *args, **named)
        if running_task() is None:
            return await call()

        async def made() -> Any:
            return _RESPONSE.dump_python(await call(), mode="json")

        given = [*args[:2], named.get("system_instructions"), named.get("input")]
        asked = json.dumps(given, sort_keys=True, default=str)
        digest = sha256(asked.encode()).hexdigest()[:16]
        return _RESPONSE.validate_python(
            await recorded(f"{enclosing_call.get()}/model {digest}", made)
        )

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        """Not recorded, and refused in a node."""
        if running_task() is not None:
            raise InvalidRequest("streamed responses are not recorded: use Runner.run in a node")
        return cast("AsyncIterator[Any]", self._model.stream_response(*args, **named))


def record_tool(tool: FunctionTool) -> FunctionTool:
    """A copy of a tool with recorded output, by call id, in a node."""
    made, invoke = copy.copy(tool), tool.on_invoke_tool

    async def invoked(context: Any, arguments: str) -> Any:
        if running_task() is None:
            return await invoke(context, arguments)
        call = f"{enclosing_call.get()}/tool {tool.name}/{context.tool_call_id}"
        return await recorded(call, partial(invoke, context, arguments))

    made.on_invoke_tool = invoked
    return made
