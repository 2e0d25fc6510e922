"""Operations as MCP tools: a store's content, and why threads do not run, for coding agents.

Rules:

- Every call needs a scope: ``read`` to look, ``admin`` to change.
- Values leave as they leave the API: through the hook ``redact``, errors included.
- Lists have at most 50 lines, and every result at most 20 kB; omissions are counted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.server import MCPServer
from mcp_types import ToolAnnotations

from milecastle.app.application import App
from milecastle.errors import InvalidRequest, MilecastleError, ThreadNotFound
from milecastle.model.actor import Actor
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Chain, Store
from milecastle.server import limits
from milecastle.server.budget import OMITTED, ValueBudget, outgoing
from milecastle.server.identity import Identity, TokenScope
from milecastle.server.problems import Refused, shown_message
from milecastle.server.redaction import Redact
from milecastle.server.request import require_scope
from milecastle.views.decoding import Decoded, read_chain
from milecastle.views.documents import (
    CancelDocument,
    DiffDocument,
    ExplainDocument,
    HistoryDocument,
    LsDocument,
    QueueDocument,
    ShowDocument,
    SubmitDocument,
    WhyDocument,
    WrittenDocument,
)
from milecastle.views.fleet import queue_document
from milecastle.views.lines import checkpoint_line, submit_document
from milecastle.views.listing import history_document, thread_page
from milecastle.views.reasons import why_document
from milecastle.views.showing import change_line, changes_between, read_shown, readable_document
from milecastle.views.values import PlainValue, as_json

_LINES: Final = 50
_BYTES: Final = 20_000
_VALUES: Final = 14_000
_WHOLE: Final = "milecastle show {thread}@{seq}"

_PAGES: Final[Mapping[str, str]] = {"threads": "thread", "checkpoints": "seq"}
"""Lists with a next page, and the member of their last line it continues behind."""


class OperationTools:
    """The tools, as methods; their docstrings describe them to the client."""

    def __init__(
        self,
        store: Store,
        caller: Identity,
        decode: Callable[[ThreadKey, Chain], Decoded],
        explain: Callable[[str], ExplainDocument],
        *,
        app: App[Any] | None = None,
        redact: Redact | None = None,
    ) -> None:
        self._store = store
        self._caller = caller
        self._decode = decode
        self._explain = explain
        self._app = app
        self._redact = redact

    def server(self) -> MCPServer[Any]:
        found: MCPServer[Any] = MCPServer("milecastle operations")
        reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        tools: dict[Callable[..., msgspec.Struct], TokenScope] = {
            self.list_threads: "read",
            self.show: "read",
            self.history: "read",
            self.diff: "read",
            self.why: "read",
            self.queue: "read",
            self.errors: "read",
            self.retry: "admin",
            self.cancel: "admin",
            self.answer: "admin",
            self.fork: "admin",
        }
        for tool, scope in tools.items():
            hints = reading if scope == "read" else None
            found.add_tool(self._tool(tool, scope), annotations=hints)
        return found

    # ---- reading

    def list_threads(
        self, status: str = "", graph: str = "", prefix: str = "", after: str = ""
    ) -> LsDocument:
        """List threads by name: all, or those with a status, a graph or a name prefix."""
        lines, next = thread_page(
            self._store,
            self._caller.tenant,
            status=status or None,
            graph=graph or None,
            prefix=prefix,
            after=after or None,
            limit=_LINES,
            most=limits.LOOKED_AT,
        )
        return LsDocument(tenant=self._caller.tenant, threads=lines, next=next)

    def show(self, thread: str, seq: int | None = None) -> ShowDocument:
        """Show a thread with its state, open questions and failure; at a checkpoint, or now."""
        info = self._line(thread)
        shown = read_shown(self._store, info.key, seq)
        if shown is None:
            raise InvalidRequest(f"thread '{thread}' has no checkpoint {seq}")
        return readable_document(self._store, info, shown, self._decode, is_head=seq is None)

    def history(self, thread: str, before: int | None = None) -> HistoryDocument:
        """List a thread's checkpoints, newest first; ``before`` continues with older ones."""
        return history_document(self._store, self._key(thread), limit=_LINES, before=before)

    def diff(self, thread: str, first: int, second: int) -> DiffDocument:
        """List the differences between two checkpoints in a thread, by path."""
        key = self._key(thread)
        old, new = (self._decode(key, read_chain(self._store, key, at)) for at in (first, second))
        changes, unread = changes_between(old, new)
        return DiffDocument(
            tenant=key.tenant,
            a=f"{thread}@{first}",
            b=f"{thread}@{second}",
            changes=tuple(map(change_line, changes)),
            not_compared=unread,
        )

    def why(self, thread: str) -> WhyDocument:
        """Explain why a thread does not run: every reason, and what to do."""
        return why_document(self._store, self._key(thread))

    def queue(self) -> QueueDocument:
        """Count what is due, waits for its time, and runs, by graph; list limits and buckets."""
        if not isinstance(self._store, ClaimStore):
            raise InvalidRequest("this store has no queue: its runs are driven by their callers")
        found, own = queue_document(self._store), self._caller.tenant
        return QueueDocument(
            lanes=tuple(line for line in found.lanes if line.tenant == own),
            limits=tuple(line for line in found.limits if line.tenant in ("", own)),
            buckets=tuple(line for line in found.buckets if line.tenant in ("", own)),
        )

    def errors(self, code: str) -> ExplainDocument:
        """Explain an error code, such as MC301, and how to fix it."""
        return self._explain(code)

    # ---- writing

    def retry(self, thread: str) -> SubmitDocument:
        """Queue a thread whose run failed, was lost or was cancelled for the workers."""
        return submit_document(self._writable.retry(self._key(thread)))

    def cancel(self, thread: str) -> CancelDocument:
        """Close a thread's unfinished run; committed steps are kept."""
        key = self._key(thread)
        cancelled = self._writable.cancel(key)
        return CancelDocument(tenant=key.tenant, thread=thread, cancelled=cancelled)

    def answer(self, thread: str, question: str, answer: Any) -> SubmitDocument:
        """Answer an open question, by its id, and let the workers resume the thread."""
        by = Actor(self._caller.name) if self._caller.name else None
        key = self._key(thread)
        return submit_document(self._writable.answer(key, answers={question: answer}, by=by))

    def fork(self, thread: str, seq: int, as_thread: str) -> WrittenDocument:
        """Make a new thread from a checkpoint; the old one is unchanged."""
        target = ThreadKey(self._caller.tenant, as_thread)
        line = checkpoint_line(self._writable.fork(self._key(thread), seq, target))
        return WrittenDocument(tenant=target.tenant, thread=as_thread, checkpoint=line)

    @property
    def _writable(self) -> App[Any]:
        if self._app is None:
            raise InvalidRequest("this server has no app: start it with --app")
        return self._app

    def _key(self, thread: str) -> ThreadKey:
        return self._line(thread).key

    def _line(self, thread: str) -> ThreadInfo:
        found = self._store.thread(ThreadKey(self._caller.tenant, thread))
        if found is None:
            raise ThreadNotFound(tenant=self._caller.tenant, thread=thread)
        return found

    # ---- calls

    def _tool(
        self, function: Callable[..., msgspec.Struct], scope: TokenScope
    ) -> Callable[..., Any]:
        def text(named: Mapping[str, Any]) -> str:
            try:
                require_scope(self._caller, scope)
                document = function(**named)
                budget = ValueBudget(_VALUES, _WHOLE)
                return _bounded(outgoing(document, self._redact, budget).value)
            except Refused as error:
                raise ToolError(error.detail) from None
            except MilecastleError as error:
                raise ToolError(f"{shown_message(error, self._redact)} [{error.code}]") from None
            except Exception as error:  # its message may have values
                raise ToolError(f"unexpected {type(error).__name__}") from None

        async def called(**named: Any) -> str:
            return await asyncio.to_thread(text, named)

        found = inspect.signature(function, eval_str=True).replace(return_annotation=str)
        called.__name__, called.__doc__ = function.__name__, function.__doc__
        setattr(called, "__signature__", found)  # noqa: B010 - functions have no such attribute
        return called


def _bounded(found: dict[str, Any]) -> str:
    """JSON of at most 20 kB: lists lose their last lines first.

    A list's next page begins after its last line; lines of other lists are counted.
    """
    whole: dict[str, list[Any]] = {
        name: value for name, value in found.items() if isinstance(value, list)
    }
    kept: dict[str, Any] = found | {name: lines[:_LINES] for name, lines in whole.items()}
    while True:
        cut = {name: len(lines) - len(kept[name]) for name, lines in whole.items()}
        for name in cut.keys() & _PAGES:
            if cut[name]:
                kept["next"] = kept[name][-1][_PAGES[name]]
        left_out = {name: count for name, count in cut.items() if count and name not in _PAGES}
        text = as_json(PlainValue(kept | ({"left_out": left_out} if left_out else {})))
        if len(text.encode()) <= _BYTES:
            return text
        largest = max(kept, key=lambda name: len(as_json(PlainValue(kept[name]))))
        value: Any = kept[largest]
        mark = {OMITTED: {"get": _WHOLE}}
        if largest not in whole:
            kept[largest] = mark
        elif len(value) > 1:
            kept[largest] = value[: len(value) // 2]
        else:
            place = _PAGES.get(largest, "")
            kept[largest] = [{name: value[0][name] for name in value[0] if name == place} | mark]
