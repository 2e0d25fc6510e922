"""The cache of a workspace: what tasks gave, by their hash; files by the hash of their bytes.

Rules:

- A file in ``blobs/`` is named after the SHA-256 of what it holds; an entry in ``entries/`` after
  its task. Both appear at once and are durable. An entry is written after its blobs.
- What is used is verified: an entry by its checksum, a blob by the bytes that were copied.
- Several processes may write at once. Whoever writes shares a lock that ``evict`` takes alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time_ns
from typing import Final

import msgspec.structs

from milecastle.errors import Corrupted, FileRefused
from milecastle.recovery.copying import bring, copy_hashed
from milecastle.recovery.durable import TEMPORARY, make_folders, put, replacing
from milecastle.recovery.hashing import Links, hash_bytes, hash_items, look_into, read_hash
from milecastle.recovery.places import Places, remove
from milecastle.recovery.records import Artifact, CacheEntry, Item, decode
from milecastle.stores.jsonl.locking import lock

__all__ = ["ContentCache", "harvest"]

_WAIT: Final = 60.0


def harvest(places: Places, path: str, node: str) -> Artifact:
    """Look at an output that a node was to make; ``FileRefused`` if it is not fit to be kept."""
    try:
        items = look_into(str(places.output(path, node)))
    except (FileNotFoundError, NotADirectoryError):
        raise FileRefused(
            f"node '{node}' declares the output '{path}' and did not make it", path=path, node=node
        ) from None
    except Links as found:
        raise FileRefused(
            f"the output '{path}' of node '{node}' cannot be kept: {found}; an output is a file, "
            "or a folder of files",
            path=path,
            node=node,
        ) from None
    return Artifact(path, hash_items(items), items)


class ContentCache:
    """Keeps what tasks gave, under ``folder``.

    ``hard_links`` restores files as hard links where the disk cannot clone: faster, and safe only
    if nobody writes to an output in place.
    """

    def __init__(self, folder: Path, *, hard_links: bool = False) -> None:
        self.folder = folder
        self._hard_links = hard_links
        self._entries = folder / "entries"
        self._blobs = folder / "blobs"
        self._made: set[Path] = set()

    def entry_path(self, task_hash: str) -> Path:
        """Where the entry of a task is."""
        return self._entries / task_hash[:2] / f"{task_hash[2:]}.json"

    def blob_path(self, hash: str) -> Path:
        """Where the file with these bytes is."""
        return self._blobs / hash[:2] / hash[2:]

    @contextmanager
    def sharing(self, *, alone: bool = False) -> Generator[None]:
        """Keep ``evict`` away while something is written, or everybody else while evicting."""
        self._make(self.folder)
        fd = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(fd, shared=not alone, timeout=_WAIT)
            yield
        finally:
            os.close(fd)

    def store(self, places: Places, entry: CacheEntry) -> None:
        """Keep what a task gave. The files must still be as they were harvested."""
        for artifact in entry.artifacts:
            base = places.output(artifact.path, entry.node)
            for item in artifact.items:
                if item.hash:
                    self._keep(base / item.path if item.path else base, item, entry.node)
        sealed = msgspec.structs.replace(entry, checksum=_checksum(entry))
        path = self.entry_path(entry.task_hash)
        self._make(path.parent)
        put(path, msgspec.json.encode(sealed))

    def load(self, task_hash: str) -> CacheEntry | None:
        """The entry of a task; ``None`` if there is none, ``Corrupted`` if it is damaged."""
        path = self.entry_path(task_hash)
        try:
            entry = decode(path, CacheEntry)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if entry.checksum != _checksum(entry) or entry.task_hash != task_hash:
            raise Corrupted("the cache entry does not match its checksum", place=str(path))
        return entry

    def damage_of(self, artifacts: Iterable[Artifact]) -> list[str]:
        """What is wrong with the files that these outputs would be restored from."""
        return [
            f"{self.blob_path(item.hash)} {why}"
            for artifact in artifacts
            for item in artifact.items
            if item.hash and (why := self._damage(item))
        ]

    def restore(self, places: Places, artifact: Artifact, node: str) -> None:
        """Put an output back as it was; ``Corrupted`` if the cache does not hold it any more."""
        target = places.output(artifact.path, node)
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(artifact.items) == 1 and artifact.items[0].hash:
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            with replacing(target, durable=False) as temporary:
                self._fetch(artifact.items[0], temporary)
            return
        self._restore_folder(target, artifact)

    def sizes(self) -> dict[str, int]:
        """The bytes of every blob, by hash."""
        return {
            folder.name + entry.name: entry.stat().st_size
            for folder, entry in _files_in(self._blobs)
        }

    def tasks(self) -> dict[str, float]:
        """When the entry of each task was last used, by task hash."""
        return {
            folder.name + entry.name.removesuffix(".json"): entry.stat().st_mtime
            for folder, entry in _files_in(self._entries)
        }

    def names(self) -> set[str]:
        """The tasks that have an entry, without a look at any."""
        return {
            folder.name + entry.name.removesuffix(".json")
            for folder, entry in _files_in(self._entries)
        }

    def touch(self, task_hash: str) -> None:
        """Note that an entry was used."""
        now = time_ns()
        try:
            os.utime(self.entry_path(task_hash), ns=(now, now))
        except OSError:
            return

    def _keep(self, source: Path, item: Item, node: str) -> None:
        blob = self.blob_path(item.hash)
        if self._damage(item) is None:
            return
        self._make(blob.parent)
        with replacing(blob) as temporary:
            if copy_hashed(source, temporary, durable=True) != item.hash:
                raise FileRefused(
                    f"{source} changed while node '{node}' was being saved: something else writes "
                    "to it",
                    path=str(source),
                    node=node,
                )
            temporary.chmod(0o444)

    def _damage(self, item: Item) -> str | None:
        try:
            hash, _, _ = read_hash(str(self.blob_path(item.hash)))
        except OSError:
            return "is missing"
        return None if hash == item.hash else "is damaged"

    def _fetch(self, item: Item, target: Path) -> None:
        blob = self.blob_path(item.hash)
        try:
            found = bring(blob, target, link=self._hard_links and not item.executable)
        except FileNotFoundError:
            raise Corrupted("a file of the cache is missing", place=str(blob)) from None
        if found != item.hash:
            raise Corrupted("a file of the cache is damaged", place=str(blob))
        if item.executable:
            mode = target.stat().st_mode & 0o777
            target.chmod(mode | (mode & 0o444) >> 2)  # whoever may read it may run it

    def _restore_folder(self, target: Path, artifact: Artifact) -> None:
        temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{os.urandom(6).hex()}")
        try:
            for item in artifact.items:
                place = temporary / item.path if item.path else temporary
                if item.folder:
                    place.mkdir()
                elif item.link:
                    place.symlink_to(item.link)
                else:
                    self._fetch(item, place)
            remove(target)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            make_folders(folder)
            self._made.add(folder)


def _checksum(entry: CacheEntry) -> str:
    return hash_bytes(msgspec.json.encode(msgspec.structs.replace(entry, checksum="")))


def _files_in(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.DirEntry[str]]]:
    try:
        shelves = [entry for entry in os.scandir(folder) if entry.is_dir()]
    except FileNotFoundError:
        return
    for shelf in shelves:
        for entry in os.scandir(shelf.path):
            if not entry.name.startswith(TEMPORARY):
                yield shelf, entry
