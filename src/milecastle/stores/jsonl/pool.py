from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NoReturn

from milecastle.errors import Unavailable
from milecastle.model.keys import ThreadKey, require_key
from milecastle.stores.jsonl.log import LogFile
from milecastle.support.forking import watch_forks


class LogPool:
    """Opens logs on demand and closes the least recently used one."""

    def __init__(
        self, path_of: Callable[[ThreadKey], Path], *, open_files: int, timeout: float
    ) -> None:
        self._path_of = path_of
        self._open_files = max(1, open_files)
        self._timeout = timeout
        self._closed = False
        self._lock = Lock()
        self._logs: OrderedDict[ThreadKey, LogFile] = OrderedDict()
        self._newest: LogFile | None = None
        watch_forks(self)

    def __len__(self) -> int:
        return len(self._logs)

    def find(self, key: ThreadKey) -> LogFile:
        """A thread's log. With its guard taken, the caller looks whether it was ``closed``.

        The guard is taken by a ``with`` on itself: any other way could be interrupted by a signal
        before its release is ensured.
        """
        log = self._newest
        if log is not None and log.key == key and not log.closed:
            return log
        with self._lock:
            self.check_open()
            log = self._logs.get(key)
            if log is None or log.closed:
                require_key(key)
                log = self._logs[key] = LogFile(self._path_of(key), key, timeout=self._timeout)
                if len(self._logs) > self._open_files:
                    self._close_oldest(log)
            else:
                self._logs.move_to_end(key)
            self._newest = log
            return log

    @contextmanager
    def holding(self, key: ThreadKey) -> Generator[LogFile, None, None]:
        while True:
            log = self.find(key)
            with log.guard:
                if log.closed:
                    continue
                try:
                    yield log
                except OSError as error:
                    unavailable(log.path, error)
                except BaseException:
                    log.give_back()  # again: a signal may have interrupted the first time
                    raise
                return

    @contextmanager
    def reading(self, key: ThreadKey) -> Generator[LogFile, None, None]:
        with self.holding(key) as log:
            log.refresh()
            yield log

    @contextmanager
    def writing(self, key: ThreadKey) -> Generator[LogFile, None, None]:
        with self.holding(key) as log:
            log.refuse_if_poisoned()
            try:
                log.take()
                yield log
            finally:
                log.give_back()

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("the file store was closed")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            logs, self._logs = self._logs, OrderedDict()
        for log in logs.values():
            with log.guard:
                log.closed = True
                log.release()

    def _close_oldest(self, newest: LogFile) -> None:
        for key, log in self._logs.items():
            if log is not newest and not log.poisoned and not log.guard.locked():
                with log.guard:
                    log.closed = True
                    log.release()
                del self._logs[key]
                return

    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None:
        """Start afresh in a child, which must not share its parent's locks."""
        if not in_child:
            return
        self._lock = Lock()
        self._newest = None
        logs, self._logs = self._logs, OrderedDict()
        for key, log in logs.items():
            log.release()
            if log.poisoned:
                log.guard = Lock()
                self._logs[key] = log


def unavailable(path: Path, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    raise Unavailable(f"the file store cannot use {path}: {reason}") from error
