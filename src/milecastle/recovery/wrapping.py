"""Nodes as a file run calls them: the same nodes, asked first whether they need to run at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec.structs

from milecastle.graph.nodes import Node
from milecastle.recovery.current import CurrentRun, within
from milecastle.recovery.session import Execution, Reused, Session

__all__ = ["wrap", "wrap_all"]

_PARAMETERS = tuple((name, name) for name in ("state", "config", "ctx"))


def wrap_all(nodes: Mapping[str, Node], session: Session, lock: int | None) -> dict[str, Node]:
    """All nodes of a graph, for one run."""
    return {name: wrap(node, session, lock) for name, node in nodes.items()}


def wrap(node: Node, session: Session, lock: int | None) -> Node:
    """A node that gives its recorded update if the plan says so, and is run otherwise."""
    if getattr(node, "subgraph", None) is not None:
        session.executed.setdefault(node.name, ())
        return node
    call = _async_call(node, session, lock) if node.is_async else _call(node, session, lock)
    return msgspec.structs.replace(
        node, function=call, parameters=_PARAMETERS, leading=0, positional=False
    )


def _call(node: Node, session: Session, lock: int | None) -> Callable[..., Any]:
    def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        begun = session.begin(node.name, state)
        if isinstance(begun, Reused):
            return begun.update
        token = within.set(_current(node.name, session, lock))
        try:
            update = node.call(state, config, ctx)
            return session.finish(begun, update)
        except BaseException:
            _fail(session, begun)
            raise
        finally:
            within.reset(token)

    return call


def _async_call(node: Node, session: Session, lock: int | None) -> Callable[..., Any]:
    async def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        from asyncio import to_thread

        begun = await to_thread(session.begin, node.name, state)
        if isinstance(begun, Reused):
            return begun.update
        token = within.set(_current(node.name, session, lock))
        try:
            update = await node.call(state, config, ctx)
            return await to_thread(session.finish, begun, update)
        except BaseException:
            _fail(session, begun)
            raise
        finally:
            within.reset(token)

    return call


def _current(name: str, session: Session, lock: int | None) -> CurrentRun:
    return CurrentRun(
        session.workspace.places.root, lock, lambda data: session.keep_log(name, data)
    )


def _fail(session: Session, begun: Execution) -> None:
    try:
        session.fail(begun)
    except OSError:
        return  # the node's own error says more
