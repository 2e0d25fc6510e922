"""Forks: the one place the system calls before and after a process forks.

A child has its parent's memory and none of its threads: a lock another thread held is never
released there, and a connection or a file lock is shared with the parent. So whatever has locks,
connections or counters registers itself here, weakly, with its reaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Final, Protocol
from weakref import WeakSet

PATIENCE: Final = 10.0
"""How many seconds a fork waits for a call that is in progress."""


class ForkAware(Protocol):
    def before_fork(self) -> None:
        """Wait, for ``PATIENCE`` at most, until no call is in progress, and let none begin."""
        ...

    def after_fork(self, *, in_child: bool) -> None:
        """Let calls begin again; in the child, without the parent's resources."""
        ...


class _Forks:
    def __init__(self) -> None:
        self.watched: WeakSet[ForkAware] = WeakSet()
        self.in_child: list[Callable[[], None]] = []
        self._one = Lock()
        self._paused: list[ForkAware] = []

    def before(self) -> None:
        self._one.acquire()
        self._paused = list(self.watched)
        for thing in self._paused:
            thing.before_fork()

    def after_in_parent(self) -> None:
        self._resume(in_child=False)
        self._one.release()

    def after_in_child(self) -> None:
        self._one = Lock()
        self._resume(in_child=True)
        for function in self.in_child:
            function()

    def _resume(self, *, in_child: bool) -> None:
        paused, self._paused = self._paused, []
        for thing in paused:
            thing.after_fork(in_child=in_child)


_forks = _Forks()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forks.before,
        after_in_parent=_forks.after_in_parent,
        after_in_child=_forks.after_in_child,
    )


def watch_forks(thing: ForkAware) -> None:
    _forks.watched.add(thing)


def call_in_child(function: Callable[[], None]) -> None:
    _forks.in_child.append(function)
