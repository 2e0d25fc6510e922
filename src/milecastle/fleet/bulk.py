"""Bulk work: many threads retried, cancelled or deleted, one after the other, here or by a job.

The command line changes threads itself (``change_threads``). The server submits a job: a small
graph's run in the tenant's thread ``bulk@@ID``. One step commits which threads are next, another
changes them, so a job survives its worker, and its state is its progress.

Rules:

- A thread's index row is read again right before it is changed: one others have changed since
  it was listed is skipped. So is one that refuses.
- After an interruption, finished changes stay. A second call finds the rest.
- A job changes threads of its own graph and tenant only, and those workers run it that serve the
  graph.
- A page of a job is noted before it is changed. If that is repeated, because its worker died, it
  meets the same threads and leaves out finished ones: none is changed twice, none beyond the
  limit, and fewer are counted.
- A thread is deleted only while the listed run wrote its head, and nobody runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict

import msgspec

from milecastle.app.application import App
from milecastle.app.encryption.keyring import Keyring
from milecastle.app.runner import Runner
from milecastle.app.runs.calls import Call
from milecastle.app.runs.submission import require_shared
from milecastle.app.state_graph import StateGraph
from milecastle.app.upkeep.removing import delete_thread
from milecastle.engine.context import Context
from milecastle.engine.status import claimed
from milecastle.errors import Conflict, InvalidRequest, MilecastleError, StoreError
from milecastle.model.keys import ThreadKey, own_key, own_name
from milecastle.model.manifest import END, START
from milecastle.model.policies import ExecutionConfig, Retry
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.support.printable import printable
from milecastle.views.listing import found_threads

_log = logging.getLogger("milecastle.fleet")

_PAGE: Final = 100
_ATTEMPTS: Final = Retry(attempts=10, delay=5.0)


BulkAction = Literal["retry", "cancel", "delete"]
ThreadChange = Callable[[ThreadInfo], bool]
OnRefusal = Callable[[ThreadInfo, MilecastleError], None]

_WAITING: Final = ("interrupted", "sleeping")
_STOPPED: Final = ("failed", "cancelled")

CHANGEABLE: Final[Mapping[BulkAction, tuple[RunStatus, ...]]] = MappingProxyType(
    {
        "retry": _STOPPED,
        "cancel": ("queued", "running", *_WAITING),
        "delete": (*_STOPPED, *_WAITING, "completed"),
    }
)
"""Which threads can be changed, by status, and how. Those that workers have refuse deletion."""


def why_not(action: BulkAction, status: RunStatus) -> str | None:
    fitting = CHANGEABLE[action]
    return (
        None if status in fitting else f"is for runs that are {', '.join(fitting)}: not for others"
    )


def deletion(store: Store, keyring: Keyring | None) -> ThreadChange:
    return lambda info: delete_thread(store, info.key, keyring, take_over=False, run_id=info.run_id)


def change_threads(
    store: Store,
    listed: Iterable[tuple[ThreadKey, str]],
    status: RunStatus,
    change: ThreadChange,
    refused: OnRefusal,
) -> Iterator[bool]:
    for key, run_id in listed:
        found = store.thread(key)
        info = found and claimed(found)
        if info is None or (info.run_id, info.status) != (run_id, status):
            yield False
            continue
        try:
            yield change(info)
        except Conflict:
            yield False
        except StoreError:
            raise
        except MilecastleError as error:
            refused(info, error)
            yield False


class BulkState(TypedDict):
    """A job's memory.

    ``left`` is how many may still be changed, ``after`` the last one found, ``page`` the
    names and runs to be changed now.
    """

    action: str
    status: str
    found: int
    left: int
    after: str
    page: list[list[str]]
    changed: int
    skipped: int


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    action: BulkAction
    status: RunStatus
    found: int
    changed: int
    skipped: int


def job_key(tenant: str, id: str) -> ThreadKey:
    return own_key(tenant, "bulk", id)


class Bulk:
    def __init__(self, app: App[Any]) -> None:
        runner, self._app = app.runner, app
        self._store = require_shared(runner.settings.store)
        self.runner: Runner[BulkState] = runner.rebuilt(
            self._graph().compile().graph,
            interval=1,
            observers=(),
            checkpoint_dir=None,
            workspace=None,
            preserve=True,
            retry_runs=_ATTEMPTS,
            migrations={},
        )

    def _graph(self) -> StateGraph[BulkState]:
        graph = StateGraph(BulkState, name=own_name("bulk", self._app.graph.name))
        graph.add_node("find", self.find)
        graph.add_node("change", self.change)
        graph.add_edges(START, "find", "change")
        graph.add_conditional_edges("change", _what_next, {"more": "find", "ends": END})
        return graph.with_default_config(ExecutionConfig(max_steps=None, cycle_detection=False))

    def submit(
        self, action: BulkAction, tenant: str, status: RunStatus, *, limit: int | None = None
    ) -> JobInfo:
        if (why := why_not(action, status)) is not None:
            raise InvalidRequest(f"{action} {why}")
        listed = found_threads(self._store, tenant, status, self._app.graph.name)
        found = sum(1 for _ in islice(listed, limit))
        id = self.runner.settings.clock.new_id()
        fresh = BulkState(
            action=action,
            status=status,
            found=found,
            left=found,
            after="",
            page=[],
            changed=0,
            skipped=0,
        )
        call = Call(input=fresh, thread=job_key(tenant, id), is_own=True)
        handle = self.runner.submit(call, priority=0)
        return _info(id, handle.status, fresh)

    def info(self, tenant: str, id: str) -> JobInfo:
        found = App(self.runner).state(job_key(tenant, id))
        return _info(id, found.status, found.state)

    def find(self, state: BulkState, ctx: Context) -> dict[str, Any]:
        tenant, status, name = _tenant(ctx), _status(state), self._app.graph.name
        listed = found_threads(self._store, tenant, status, name, state["after"] or None)
        page = [
            [info.key.thread, info.run_id] for info in islice(listed, min(_PAGE, state["left"]))
        ]
        return {
            "left": state["left"] - len(page) if page else 0,
            "after": page[-1][0] if page else state["after"],
            "page": page,
        }

    def change(self, state: BulkState, ctx: Context) -> dict[str, Any]:
        tenant, app = _tenant(ctx), self._app
        changes: dict[str, ThreadChange] = {
            "retry": lambda info: not app.retry(info.key).reused,
            "cancel": lambda info: app.cancel(info.key, run_id=info.run_id),
            "delete": deletion(self._store, self.runner.settings.encryption),
        }
        listed = ((ThreadKey(tenant, thread), run_id) for thread, run_id in state["page"])
        change = changes[state["action"]]
        changed = sum(change_threads(self._store, listed, _status(state), change, _refused))
        return {
            "changed": state["changed"] + changed,
            "skipped": state["skipped"] + len(state["page"]) - changed,
        }


def _what_next(state: BulkState) -> str:
    return "more" if state["left"] else "ends"


def _tenant(ctx: Context) -> str:
    if ctx.thread is None:
        raise AssertionError("a job has a thread")
    return ctx.thread.tenant


def _status(state: BulkState) -> Any:
    return state["status"]


def _info(id: str, status: RunStatus, state: BulkState) -> JobInfo:
    action: Any = state["action"]
    return JobInfo(
        id=id,
        action=action,
        status=status,
        found=state["found"],
        changed=state["changed"],
        skipped=state["skipped"],
    )


def _refused(info: ThreadInfo, error: MilecastleError) -> None:
    _log.warning(
        "thread '%s' was skipped: %s", printable(info.key.thread), printable(error.message)
    )
