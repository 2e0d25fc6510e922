"""Every order of spawn, end, cancel, retry, delete, notification and crash, without the engine.

A state is a parent, its children and the processes at work; a transition is one commit or one read.
``explore`` visits each state that can be reached with a budget of events, and returns what is wrong
in those where every process has finished. A rule can be removed: that must be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

RULES = frozenset(
    {
        "a writer that replaces a row sends its notification first",
        "a spawned run checks its parent when it starts",
        "a notification is sent before it is cleared",
        "the commit that ends a run leaves its notification",
        "children are listed after the cancellation is committed",
        "a notification has the run as its key",
    }
)
LIVE = ("queued", "running")


class Child(NamedTuple):
    status: str = "absent"
    run: int = 0
    owes: bool = False


class Process(NamedTuple):
    """``kind``: spawn, start, notify, cascade. ``at`` is its place, ``todo`` the children left."""

    kind: str
    at: str
    child: int = 0
    run: int = 0
    todo: tuple[int, ...] = ()


class World(NamedTuple):
    parent: str
    owes: bool
    children: tuple[Child, ...]
    processes: tuple[Process, ...]
    mailbox: tuple[tuple[int, int], ...] = ()
    ended: frozenset[tuple[int, int]] = frozenset()
    budget: tuple[tuple[str, int], ...] = ()

    def child(self, number: int, **changed: Any) -> World:
        found = self.children[number]._replace(**changed)
        children = (*self.children[:number], found, *self.children[number + 1 :])
        return self._replace(children=children)

    def swap(self, old: Process | None, new: Process | None) -> World:
        left = list(self.processes)
        if old is not None:
            left.remove(old)
        return self._replace(processes=tuple(sorted([*left, new] if new else left)))

    def spend(self, event: str) -> World:
        budget = dict(self.budget)
        budget[event] -= 1
        return self._replace(budget=tuple(sorted(budget.items())))


class Protocol:
    def __init__(self, without: str = "") -> None:
        assert not without or without in RULES
        self._without = without

    def _has(self, rule: str) -> bool:
        assert rule in RULES
        return rule != self._without

    def next(self, world: World) -> Iterator[World]:
        """Worlds that the processes and the workers lead to."""
        for process in world.processes:
            yield from getattr(self, f"_{process.kind}")(world, process)
        busy = {(one.kind, one.child) for one in world.processes}
        for number, child in enumerate(world.children):
            if child.owes and ("notify", number) not in busy:
                claimed = Process("notify", "send", number, child.run)
                yield world.swap(None, claimed)
            elif child.status == "queued" and ("start", number) not in busy:
                yield world.swap(None, Process("start", "check", number, child.run))
        if world.owes and ("cascade", 0) not in busy:
            yield world.swap(None, Process("cascade", "list"))

    def events(self, world: World) -> Iterator[World]:
        """Worlds that people, crashes and the ends of runs lead to."""
        left = dict(world.budget)
        if left["crash"]:
            for process in world.processes:
                again = process._replace(at="0") if process.kind == "spawn" else None
                yield world.spend("crash").swap(process, again)
        if left["cancel"] and world.parent == "running":
            listed = self._listed(world)
            after = world.spend("cancel")._replace(parent="cancelled", owes=True)
            if self._has("children are listed after the cancellation is committed"):
                yield after.swap(None, Process("cascade", "list"))
            else:
                yield world.spend("cancel").swap(None, Process("cascade", "late", todo=listed))
        if left["retry parent"] and world.parent == "cancelled":
            now = world.spend("retry parent")
            if self._has("a writer that replaces a row sends its notification first"):
                for number in self._listed(now) if now.owes else ():
                    now = self._cancel(now, number)
            now = now._replace(parent="running", owes=False)
            yield now.swap(None, Process("spawn", "0"))
        if left["delete"] and world.parent != "deleted":
            yield world.spend("delete")._replace(parent="deleted", owes=False, mailbox=())
        for number, child in enumerate(world.children):
            if left["end"] and child.status == "running":
                for status in ("completed", "failed"):
                    yield self._ended(world.spend("end"), number, status)
            if left["retry child"] and child.status in ("failed", "cancelled"):
                now = world.spend("retry child")
                rule = "a writer that replaces a row sends its notification first"
                if child.owes and self._has(rule):
                    now = self._send(now, number, child.run)
                yield now.child(number, status="queued", run=child.run + 1, owes=False)

    def _spawn(self, world: World, process: Process) -> Iterator[World]:
        """Not fenced: a run that lost its thread may still spawn."""
        number = int(process.at)
        if world.children[number].status == "absent":
            world = world.child(number, status="queued")
        more = process._replace(at=str(number + 1)) if number + 1 < len(world.children) else None
        yield world.swap(process, more)

    def _start(self, world: World, process: Process) -> Iterator[World]:
        child, checks = world.children[process.child], process.at == "check"
        if checks and self._has("a spawned run checks its parent when it starts"):
            is_first = child.run == 0
            if world.parent == "cancelled" and is_first:
                yield world.swap(process, process._replace(at="cancel"))
                return
            yield world.swap(process, process._replace(at="run"))
            return
        after = world.swap(process, None)
        if child.status == "queued" and child.run == process.run:  # or fenced
            if process.at == "cancel":
                after = self._cancel(after, process.child)
            else:
                after = after.child(process.child, status="running")
        yield after

    def _notify(self, world: World, process: Process) -> Iterator[World]:
        sends_first = self._has("a notification is sent before it is cleared")
        number, run = process.child, process.run
        steps = ("send", "clear") if sends_first else ("clear", "send")
        at = steps[0] if process.at == "send" else steps[1]
        after = world.swap(process, process._replace(at="second") if process.at == "send" else None)
        if at == "send":
            yield self._send(after, number, run)
        elif world.children[number].run == run and world.children[number].owes:
            yield after.child(number, owes=False)
        else:
            yield after

    def _cascade(self, world: World, process: Process) -> Iterator[World]:
        if process.at == "late":
            owing = world._replace(parent="cancelled", owes=True)
            yield owing.swap(process, process._replace(at="cancel"))
        elif process.at == "list":
            todo = self._listed(world)
            yield world.swap(process, process._replace(at="cancel", todo=todo))
        elif process.todo:
            after = world.swap(process, process._replace(todo=process.todo[1:]))
            if world.parent == "running":  # it was retried: the row is another
                yield world.swap(process, None)
            else:
                yield self._cancel(after, process.todo[0])
        else:
            yield world.swap(process, None)._replace(owes=False)

    def _listed(self, world: World) -> tuple[int, ...]:
        return tuple(n for n, child in enumerate(world.children) if child.status != "absent")

    def _cancel(self, world: World, number: int) -> World:
        if world.children[number].status not in LIVE:
            return world
        return self._ended(world, number, "cancelled")

    def _ended(self, world: World, number: int, status: str) -> World:
        ended = world.ended | {(number, world.children[number].run)}
        owes = self._has("the commit that ends a run leaves its notification")
        return world._replace(ended=ended).child(number, status=status, owes=owes)

    def _send(self, world: World, number: int, run: int) -> World:
        if world.parent == "deleted":
            return world
        message = (number, run)
        if message in world.mailbox and self._has("a notification has the run as its key"):
            return world
        return world._replace(mailbox=tuple(sorted([*world.mailbox, message])))


def explore(without: str = "", children: int = 1, **budget: int) -> tuple[int, set[str]]:
    """The number of states, and what is wrong in those where no process has work."""
    protocol, faults = Protocol(without), set[str]()
    events = {"crash": 1, "cancel": 1, "end": 1, "delete": 0, "retry child": 1, "retry parent": 0}
    events |= {name.replace("_", " "): count for name, count in budget.items()}
    first = World(
        "running", False, (Child(),) * children, (Process("spawn", "0"),),
        budget=tuple(sorted(events.items())),
    )  # fmt: skip
    seen, left = {first}, [first]
    while left:
        world = left.pop()
        following = list(protocol.next(world))
        if not following:
            faults |= set(_faults(world))
        for found in (*following, *protocol.events(world)):
            if found not in seen:
                seen.add(found)
                left.append(found)
    return len(seen), faults


def _faults(world: World) -> Iterator[str]:
    """Faults of a world in which every process has finished."""
    if world.parent == "deleted":
        return
    if len(set(world.mailbox)) < len(world.mailbox):
        yield "a parent was notified twice"
    if world.ended - {*world.mailbox}:
        yield "a parent was not notified"
    if world.parent == "cancelled" and any(
        child.status in LIVE and not child.run for child in world.children
    ):
        yield "a child of a cancelled parent runs"
