"""A lock on an open file, held against other processes and against other handles of this one.

It is an operating system lock, so it is released when its process ends. Readers share it where the
system supports that.
"""

from __future__ import annotations

import sys
from time import monotonic, sleep

from milecastle.errors import Unavailable

_FIRST_WAIT = 0.0002
_LONGEST_WAIT = 0.01

if sys.platform == "win32":
    import msvcrt
    import os
    from contextlib import suppress

    _PLACE = 1 << 40  # far beyond any file's end, so that locking does not block readers

    def try_lock(fd: int, shared: bool) -> bool:
        os.lseek(fd, _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(fd: int) -> None:
        os.lseek(fd, _PLACE, os.SEEK_SET)
        with suppress(OSError):  # it was not taken
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
    _EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB

    def try_lock(fd: int, shared: bool) -> bool:
        try:
            fcntl.flock(fd, _SHARED if shared else _EXCLUSIVE)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(fd: int, *, shared: bool = False, timeout: float) -> None:
    """Take the lock; ``Unavailable`` if others hold it longer than ``timeout`` seconds."""
    if try_lock(fd, shared):
        return
    deadline = monotonic() + timeout
    wait = _FIRST_WAIT
    while not try_lock(fd, shared):
        if monotonic() >= deadline:
            raise Unavailable(
                f"another process locked the thread's file for more than {timeout:g} s"
            )
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
