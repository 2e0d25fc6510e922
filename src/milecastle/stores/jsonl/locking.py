"""A lock on an open file, held against other processes and against other handles of this one.

It is the system's own lock, so it goes with the process that held it. Readers share it on
systems that can.
"""

from __future__ import annotations

import sys
from time import monotonic, sleep

from milecastle.errors import Unavailable

__all__ = ["lock", "try_lock", "unlock"]

_FIRST_WAIT = 0.0002
_LONGEST_WAIT = 0.01

if sys.platform == "win32":
    import msvcrt
    import os

    _PLACE = 1 << 40  # far beyond any file's end, so that locking keeps nobody from reading

    def try_lock(fd: int, shared: bool) -> bool:
        """Take the lock if nobody is in the way."""
        os.lseek(fd, _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go of the lock."""
        os.lseek(fd, _PLACE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
    _EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB

    def try_lock(fd: int, shared: bool) -> bool:
        """Take the lock if nobody is in the way."""
        try:
            fcntl.flock(fd, _SHARED if shared else _EXCLUSIVE)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go of the lock."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(fd: int, *, shared: bool = False, timeout: float) -> None:
    """Take the lock; ``Unavailable`` if others hold it for longer than ``timeout`` seconds."""
    if try_lock(fd, shared):
        return
    deadline = monotonic() + timeout
    wait = _FIRST_WAIT
    while not try_lock(fd, shared):
        if monotonic() >= deadline:
            raise Unavailable(f"another process held the thread's file for over {timeout:g} s")
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
