"""The logs that are open: a bounded number, each used by one thread of execution at a time."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NoReturn
from weakref import WeakSet

from milecastle.errors import Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.jsonl.log import Log

__all__ = ["LogPool", "forget_in_child", "unavailable"]


class LogPool:
    """Opens logs when they are asked for and closes the one that was not used for longest."""

    def __init__(
        self, path_of: Callable[[ThreadKey], Path], *, open_files: int, timeout: float
    ) -> None:
        self._path_of = path_of
        self._open_files = max(1, open_files)
        self._timeout = timeout
        self._closed = False
        self._lock = Lock()
        self._logs: OrderedDict[ThreadKey, Log] = OrderedDict()
        self._newest: Log | None = None
        _pools.add(self)

    def __len__(self) -> int:
        return len(self._logs)

    def enter(self, key: ThreadKey) -> Log:
        """The log of a thread, its guard taken: the caller releases it."""
        log = self._newest
        while True:
            if log is None or log.key != key:
                log = self._find(key)
            log.guard.acquire()
            if not log.closed:
                return log
            log.guard.release()
            log = None

    def _find(self, key: ThreadKey) -> Log:
        """The log of a thread, which is the newest in use then."""
        with self._lock:
            self.check_open()
            log = self._logs.get(key)
            if log is None:
                log = self._logs[key] = Log(self._path_of(key), key, timeout=self._timeout)
                if len(self._logs) > self._open_files:
                    self._close_oldest(log)
            else:
                self._logs.move_to_end(key)
            self._newest = log
            return log

    @contextmanager
    def holding(self, key: ThreadKey) -> Generator[Log, None, None]:
        """The log of a thread, for as long as it takes."""
        log = self.enter(key)
        try:
            yield log
        except OSError as error:
            unavailable(log.path, error)
        finally:
            log.guard.release()

    @contextmanager
    def reading(self, key: ThreadKey) -> Generator[Log, None, None]:
        """The log of a thread, with all of it read."""
        with self.holding(key) as log:
            log.refresh()
            yield log

    @contextmanager
    def writing(self, key: ThreadKey) -> Generator[Log, None, None]:
        """The log of a thread, held against every other writer."""
        with self.holding(key) as log:
            log.refuse_if_poisoned()
            held = log.take()
            try:
                yield log
            finally:
                if held:
                    log.give_back()

    def check_open(self) -> None:
        """Raise ``Unavailable`` if the pool was closed."""
        if self._closed:
            raise Unavailable("the file store was closed")

    def close(self) -> None:
        """Close every log, each when its user is done."""
        with self._lock:
            self._closed = True
            self._newest = None
            logs, self._logs = self._logs, OrderedDict()
        for log in logs.values():
            with log.guard:
                log.closed = True
                log.release()

    def _close_oldest(self, newest: Log) -> None:
        """Make room: not by a log in use, nor by a poisoned one, whose poison must last."""
        for key, log in self._logs.items():
            if log is not newest and not log.poisoned and log.guard.acquire(blocking=False):
                log.closed = True
                log.release()
                log.guard.release()
                del self._logs[key]
                return

    def forget(self) -> None:
        """Start afresh in a forked child, which must not share its parent's locks."""
        self._lock = Lock()
        self._newest = None
        logs, self._logs = self._logs, OrderedDict()
        for key, log in logs.items():
            log.release()
            if log.poisoned:
                log.guard = Lock()
                self._logs[key] = log


_pools: WeakSet[LogPool] = WeakSet()


def forget_in_child() -> None:
    """Let every pool start afresh; called in a forked child."""
    for pool in list(_pools):
        pool.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=forget_in_child)


def unavailable(path: Path, error: OSError) -> NoReturn:
    """Say in our words that the disk refused."""
    reason = error.strerror or str(error)
    raise Unavailable(f"the file store cannot use {path}: {reason}") from error
