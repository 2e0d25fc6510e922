"""Operations as MCP tools: what a store has, and why threads do not run, for coding agents.

Rules:

- Without an app every tool only reads.
- Lists have at most 50 lines, and every result at most 20 kB: what is left out is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import msgspec
from mcp.server.mcpserver.server import MCPServer
from mcp_types import ToolAnnotations

from milecastle.app.application import App
from milecastle.errors import InvalidRequest, MilecastleError, ThreadNotFound
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Chain, Store
from milecastle.server import limits
from milecastle.views.decoding import Decoded
from milecastle.views.fleet import queue_document
from milecastle.views.lines import checkpoint_line
from milecastle.views.listing import thread_page
from milecastle.views.reasons import why_document
from milecastle.views.showing import change_line, changes_between, read_shown, show_document
from milecastle.views.values import plain

_LINES: Final = 50
_BYTES: Final = 20_000

Decode = Callable[[ThreadKey, Chain], Decoded]
Explain = Callable[[str], str]


class OperationTools:
    """The tools, as methods; their docstrings describe them to the client."""

    def __init__(
        self, store: Store, tenant: str, decode: Decode, explain: Explain, app: App[Any] | None
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._decode = decode
        self._explain = explain
        self._app = app

    def server(self) -> MCPServer[Any]:
        found: MCPServer[Any] = MCPServer("milecastle operations")
        reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        readers = (
            self.list_threads,
            self.show,
            self.history,
            self.diff,
            self.why,
            self.queue,
            self.errors,
        )
        for reader in readers:
            found.add_tool(_off_loop(reader), name=reader.__name__, annotations=reading)
        if self._app is not None:
            for writer in (self.retry, self.cancel, self.answer, self.fork):
                found.add_tool(_off_loop(writer), name=writer.__name__)
        return found

    # ---- reading

    def list_threads(
        self, status: str = "", graph: str = "", prefix: str = "", after: str = ""
    ) -> Any:
        """List threads by name: all, or those of a status, a graph or a prefix of their names."""
        lines, next = thread_page(
            self._store,
            self._tenant,
            status=status or None,
            graph=graph or None,
            tag=None,
            prefix=prefix,
            after=after or None,
            limit=_LINES,
            most=limits.LOOKED_AT,
        )
        return {"threads": lines, "next": next}

    def show(self, thread: str, seq: int | None = None) -> Any:
        """Show a thread with its state, open questions and failure; at a checkpoint, or now."""
        key = self._key(thread)
        shown = read_shown(self._store, key, seq)
        if shown is None:
            raise InvalidRequest(f"thread '{thread}' has no checkpoint {seq}")
        return show_document(self._store, key, shown, self._decode(key, shown.chain))

    def history(self, thread: str, before: int | None = None) -> Any:
        """List a thread's checkpoints, newest first."""
        key = self._key(thread)
        entries = self._store.history(key, limit=_LINES, before=before)
        return [checkpoint_line(CheckpointMetadata.of(key, entry)) for entry in entries]

    def diff(self, thread: str, first: int, second: int) -> Any:
        """List the differences between two checkpoints of a thread, by path."""
        key = self._key(thread)
        found: list[Decoded] = []
        for seq in (first, second):
            chain = self._store.read_state(key, seq)
            if chain is None:
                raise InvalidRequest(f"thread '{thread}' has no checkpoint {seq}")
            found.append(self._decode(key, chain))
        changes, unread = changes_between(found[0], found[1])
        return {"changes": [*map(change_line, changes)], "not_compared": unread}

    def why(self, thread: str) -> Any:
        """Explain why a thread does not run: every reason, and what to do."""
        return why_document(self._store, self._key(thread))

    def queue(self) -> Any:
        """Count what is due, waits for its time, and runs, by graph; and list the limits."""
        if not isinstance(self._store, ClaimStore):
            raise InvalidRequest("this store has no queue: its runs are driven by their callers")
        return queue_document(self._store)

    def errors(self, code: str) -> Any:
        """Explain an error code, such as MC301, and how to fix it."""
        return {"code": code, "text": self._explain(code)}

    # ---- writing

    def retry(self, thread: str) -> Any:
        """Hand a thread whose run failed, died or was cancelled over to the workers."""
        return {"run_id": self._writable.retry(self._key(thread)).run_id}

    def cancel(self, thread: str) -> Any:
        """Close the unfinished run of a thread; committed steps are kept."""
        return {"cancelled": self._writable.cancel(self._key(thread))}

    def answer(self, thread: str, question: str, answer: Any) -> Any:
        """Answer an open question, by its id, and let the workers resume the thread."""
        handle = self._writable.answer(self._key(thread), answers={question: answer})
        return {"run_id": handle.run_id}

    def fork(self, thread: str, seq: int, as_thread: str) -> Any:
        """Make a new thread of a checkpoint; the old one is unchanged."""
        target = ThreadKey(self._tenant, as_thread)
        return checkpoint_line(self._writable.fork(self._key(thread), seq, target))

    @property
    def _writable(self) -> App[Any]:
        if self._app is None:
            raise InvalidRequest("this server only reads")
        return self._app

    def _key(self, thread: str) -> ThreadKey:
        key = ThreadKey(self._tenant, thread)
        if self._store.thread(key) is None:
            raise ThreadNotFound(tenant=self._tenant, thread=thread)
        return key


def _off_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def called(*given: Any, **named: Any) -> str:
        return await asyncio.to_thread(_result, function, given, named)

    vars(called).pop("__wrapped__")  # its result is text
    import inspect

    found = inspect.signature(function, eval_str=True)
    setattr(called, "__signature__", found.replace(return_annotation=str))  # noqa: B010
    return called


def _result(function: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    try:
        found = function(*given, **named)
    except MilecastleError as error:
        raise ValueError(f"{error.message} [{error.code}]") from None
    text = msgspec.json.encode(plain(msgspec.to_builtins(found))).decode()
    if len(text) <= _BYTES:
        return text
    return f"{text[:_BYTES]}\n(cut: {len(text)} characters; ask for less)"
