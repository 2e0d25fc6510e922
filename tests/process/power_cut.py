"""Cuts the power under a writer, again and again, and says what became of what it wrote.

Run as ``python -m tests.process.power_cut ext4|xfs jsonl|sqlite CUTS SEED [cheat]`` by root;
prints JSON. A cut is a shutdown of a file system that is mounted from an image: nothing in its
page cache and nothing in the memory of its journal reaches the image any more. Then the writer is
killed, the file system mounted again, and its journal replayed.

Every second writer is stopped before the cut; the others are cut off in the middle of whatever
they do. Those outlive the power for a moment, and a sync that is under way may then come back
without an error and without effect (a bare loop of write and sync shows the same), so only what
was acknowledged before the cut was promised.
``cheat`` takes the syncs away: for JSONL they do nothing, SQLite is set to NORMAL.

What this cannot show: a disk that loses what it was not told to flush. The image keeps all that
the file system sent to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.sqlite import SqliteStore
from tests.process.acknowledging import Ledger, Verdict, end_writer, fork_writer, interruptible

SHUTDOWN = 0x8004587D
WITHOUT_FLUSH = struct.pack("I", 2)

SIZES = {"ext4": 96, "xfs": 320}
"""Megabytes; xfs is not made any smaller."""

PER_DISK = 100
PER_STORE = 4
THREADS = 3


class Disk:
    """An image with a file system, mounted while it is in use."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._image = folder / "image"
        self.place = folder / "disk"
        self.place.mkdir()

    def format(self) -> None:
        """Begin with an empty file system, mounted."""
        if self.place.is_mount():
            self.unmount()
        self._image.unlink(missing_ok=True)
        self._image.touch()
        os.truncate(self._image, SIZES[self._kind] << 20)
        run(f"mkfs.{self._kind}", "-q", str(self._image))
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop", "-t", self._kind, str(self._image), str(self.place))

    def unmount(self) -> None:
        run("umount", str(self.place))

    def cut(self) -> None:
        """Shut the file system down without writing anything any more."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(fd)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


@contextmanager
def a_disk(kind: str) -> Generator[Disk, None, None]:
    """A disk in memory if there is room for it; what happens to it is the same."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="mc-cut-", dir=place))
    disk = Disk(kind, folder)
    try:
        disk.format()
        yield disk
    finally:
        with suppress(subprocess.CalledProcessError):
            disk.unmount()
        shutil.rmtree(folder)


def available() -> str:
    """Why no power can be cut here; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting an image needs Linux and root"
    missing = [name for name in ("mount", "mkfs.ext4") if not shutil.which(name)]
    if missing:
        return f"missing: {', '.join(missing)}"
    try:
        with a_disk("ext4") as disk:
            disk.cut()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no image can be mounted and cut off: {error}"
    return ""


def open_store(kind: str, folder: Path, cheat: bool) -> Store:
    if kind == "sqlite":
        folder.mkdir(exist_ok=True)
        return SqliteStore(folder / "store.db", synchronous="normal" if cheat else "full")
    return JsonlStore(folder)


def without_syncs() -> None:
    """Make every sync of this process void."""
    os.fsync = os.fdatasync = lambda fd: None


def cut_once(disk: Disk, writer: int, ledger: Ledger, *, stopped: bool) -> list[int]:
    """Cut the power under a writer; what was acknowledged by then."""
    if stopped:
        os.kill(writer, signal.SIGSTOP)
        os.waitpid(writer, os.WUNTRACED)
    promised = ledger.acknowledged()
    disk.cut()
    end_writer(writer)
    disk.unmount()
    disk.mount()
    return promised


def check_file(path: Path) -> bool:
    """Whether SQLite itself finds its file sound."""
    with closing(sqlite3.connect(path)) as connection:
        found: list[tuple[str]] = connection.execute("PRAGMA integrity_check").fetchall()
    return found == [("ok",)]


class Cutting:
    """Some cuts under writers of one store, each of which continues where the last one ended."""

    def __init__(self, kind: str, folder: Path, cheat: bool) -> None:
        self._kind = kind
        self._folder = folder
        self._cheat = cheat
        self._ledger = Ledger([ThreadKey(f"tenant {each}", "thread") for each in range(THREADS)])

    def cut(self, disk: Disk, verdict: Verdict, chance: random.Random, *, stopped: bool) -> None:
        """Let a writer write for a while, cut the power, and look at what is left."""
        writer = fork_writer(self._write)
        self._ledger.wait(chance)
        promised = cut_once(disk, writer, self._ledger, stopped=stopped)
        with closing(open_store(self._kind, self._folder, False)) as store:
            self._ledger.judge(store, verdict, promised)
        if self._kind == "sqlite":
            verdict.wrong += not check_file(self._folder / "store.db")

    def _write(self) -> None:
        if self._cheat:
            without_syncs()
        self._ledger.write(open_store(self._kind, self._folder, self._cheat))


def main(file_system: str, kind: str, cuts: int, seed: int, cheat: bool) -> dict[str, int]:
    """Cut the power ``cuts`` times, and count what was lost, invented or wrong."""
    chance, verdict = random.Random(seed), Verdict()
    with a_disk(file_system) as disk:
        cutting: Cutting | None = None
        for number in interruptible(cuts):
            if number and number % PER_DISK == 0:
                disk.format()
            if cutting is None or number % PER_STORE == 0:
                cutting = Cutting(kind, disk.place / f"store {number}", cheat)
            cutting.cut(disk, verdict, chance, stopped=number % 2 == 1)
    return vars(verdict)


if __name__ == "__main__":
    file_system, store, count, seed = sys.argv[1:5]
    print(json.dumps(main(file_system, store, int(count), int(seed), "cheat" in sys.argv)))
