"""Caches of task results, by task hash: a workspace's own, and one that workspaces share.

Rules of a workspace's cache:

- A file in ``blobs/`` is named after its SHA-256; an entry in ``entries/`` after its task. Both
  appear atomically and are durable. An entry is written after its blobs.
- Everything used is verified: an entry by its checksum, its items by the output's hash, a blob by
  the copied bytes. Nothing is written outside of an output.
- Files and folders are accessible only to their owner. An output is restored with the modes it
  had.
- Several processes may write at once. Writers share a lock that ``evict`` takes exclusively.

The shared cache is in object storage, below ``builds/``, in a folder for each tenant:

- ``tasks/TASK``: the task's result, with each file's digest;
- the files, in chunks, as those of states are (``stores/offloading/files.py``), once per content.

Its rules:

- Everything fetched is verified before use: the result by its checksum and its items, a file by its
  digest and by its SHA-256. It goes into the cache of the workspace first.
- Whatever is missing, damaged, of a newer format or cannot be reached is a miss. Damaged results
  are forgotten, so the next workspace running the task publishes it again.
- A task is published after its result is complete here. Failing to do so is not an error of the
  run: it is logged.
- Nothing is removed: a lifecycle rule of the bucket may remove objects below ``builds/`` by age.
- Nothing is shared between tenants, and nothing encrypted is shared.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import msgspec.json
import msgspec.structs

from milecastle.builds.paths import (
    Links,
    Places,
    Spot,
    bring,
    copy_hashed,
    hash_bytes,
    hash_items,
    look_into,
    problem_of_items,
    read_hash,
    write_hashed,
)
from milecastle.builds.records import FORMAT, Artifact, CacheEntry, Item, decode
from milecastle.codec.envelope import COMPRESSED, compress, decompress, frame, unframe
from milecastle.disk.files import PRIVATE_FILE, PRIVATE_FOLDER
from milecastle.disk.locking import lock
from milecastle.disk.replacing import TEMPORARY, make_folders, put, replacing, temporary_name
from milecastle.errors import (
    CodecError,
    Corrupted,
    FileRefused,
    FormatTooNew,
    MilecastleError,
    Unavailable,
)
from milecastle.model.file import File
from milecastle.support.prepared import prepared

_WAIT: Final = 60.0
_BLOB: Final = 0o400


def harvest(places: Places, path: str, node: str) -> Artifact:
    """Check a node's output; ``FileRefused`` if it cannot be stored."""
    try:
        items = look_into(str(places.output(path, node)))
    except (FileNotFoundError, NotADirectoryError):
        raise FileRefused(
            f"node '{node}' declares the output '{path}' but did not create it",
            file=path,
            node=node,
        ) from None
    except Links as found:
        raise FileRefused(
            f"the output '{path}' of node '{node}' cannot be stored: {found}; an output must be a "
            "file or a folder of files",
            file=path,
            node=node,
        ) from None
    return Artifact(path, hash_items(items), items)


class ContentCache:
    """Stores task results under ``folder``.

    ``hard_links`` restores files as hard links where the disk cannot clone: faster, but safe only
    if nothing writes to an output in place.
    """

    def __init__(self, folder: Path, *, hard_links: bool = False) -> None:
        self.folder = folder
        self._hard_links = hard_links
        self._entries = folder / "entries"
        self._blobs = folder / "blobs"
        self._made: set[Path] = set()

    def entry_path(self, task_hash: str) -> Path:
        return self._entries / task_hash[:2] / f"{task_hash[2:]}.json"

    def blob_path(self, hash: str) -> Path:
        return self._blobs / hash[:2] / hash[2:]

    @contextmanager
    def sharing(self, *, alone: bool = False) -> Generator[None]:
        self._make(self.folder)
        fd = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            lock(fd, shared=not alone, timeout=_WAIT)
            yield
        finally:
            os.close(fd)

    def store(self, places: Places, entry: CacheEntry) -> None:
        """Store a task's result. The files must not have changed since they were harvested."""
        for artifact in entry.artifacts:
            base = places.output(artifact.path, entry.node)
            for item in artifact.items:
                if item.hash:
                    self._keep(base / item.path if item.path else base, item, entry.node)
        self.admit(entry)

    def admit(self, entry: CacheEntry) -> None:
        sealed = msgspec.structs.replace(entry, checksum=_checksum(entry))
        path = self.entry_path(entry.task_hash)
        self._make(path.parent)
        put(path, msgspec.json.encode(sealed))

    def has(self, item: Item) -> bool:
        return self._damage(item) is None

    def add(self, hash: str, chunks: Iterable[bytes]) -> None:
        """Store a file from elsewhere; ``Corrupted`` if its hash differs."""
        blob = self.blob_path(hash)
        self._make(blob.parent)
        with replacing(blob) as temporary:
            if write_hashed(temporary, chunks, mode=_BLOB) != hash:
                raise Corrupted("a file of a shared cache is damaged", place=str(blob))

    def load(self, task_hash: str) -> CacheEntry | None:
        """A task's entry; ``None`` if absent, ``Corrupted`` if damaged."""
        path = self.entry_path(task_hash)
        try:
            entry = decode(path, CacheEntry)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if entry.checksum != _checksum(entry) or entry.task_hash != task_hash:
            raise Corrupted("the cache entry does not match its checksum", place=str(path))
        return entry

    def damage_of(self, artifacts: Iterable[Artifact]) -> list[str]:
        return [
            f"{self.blob_path(item.hash)} {why}"
            for artifact in artifacts
            for item in artifact.items
            if item.hash and (why := self._damage(item))
        ]

    def restore(self, places: Places, artifact: Artifact, node: str) -> None:
        """Restore an output as it was; ``Corrupted`` if the cache does not hold exactly that.

        It is assembled next to its path, and moved there once complete.
        """
        if why := problem_of_items(artifact):
            raise Corrupted(f"the cache entry of node '{node}' {why}", place=str(self._entries))
        with places.holding(artifact.path, node) as target:
            temporary = target.beside(temporary_name())
            try:
                for item in artifact.items:
                    self._lay(item, temporary.below(item.path))
                for item in reversed(artifact.items):
                    if item.folder:
                        folder = temporary.below(item.path)
                        # Its owner can always remove it, or no later run could replace it.
                        os.chmod(folder.path, item.mode | PRIVATE_FOLDER, dir_fd=folder.folder)
                if artifact.items[0].folder or target.is_folder():
                    target.remove()
                temporary.replace(target)
            except BaseException:
                temporary.remove()
                raise

    def sizes(self) -> dict[str, int]:
        return {name: file.stat().st_size for name, file in _files_in(self._blobs)}

    def tasks(self) -> dict[str, float]:
        return {name: file.stat().st_mtime for name, file in _files_in(self._entries)}

    def names(self) -> set[str]:
        return {name for name, _ in _files_in(self._entries)}

    def touch(self, task_hash: str) -> None:
        with suppress(OSError):
            os.utime(self.entry_path(task_hash))

    def _keep(self, source: Path, item: Item, node: str) -> None:
        blob = self.blob_path(item.hash)
        if self._damage(item) is None:
            return
        self._make(blob.parent)
        with replacing(blob) as temporary:
            spot = Spot(str(temporary), None)
            if copy_hashed(source, spot, mode=_BLOB, durable=True) != item.hash:
                raise FileRefused(
                    f"{source} changed while node '{node}' was being saved: something else is "
                    "writing to it",
                    file=str(source),
                    node=node,
                )

    def _damage(self, item: Item) -> str | None:
        try:
            hash, _, _ = read_hash(str(self.blob_path(item.hash)))
        except OSError:
            return "is missing"
        return None if hash == item.hash else "is damaged"

    def _lay(self, item: Item, target: Spot) -> None:
        if item.folder:
            os.mkdir(target.path, PRIVATE_FOLDER, dir_fd=target.folder)
        elif item.link:
            os.symlink(item.link, target.path, dir_fd=target.folder)
        else:
            blob = self.blob_path(item.hash)
            link = self._hard_links and not item.mode & stat.S_IXUSR
            try:
                found = bring(blob, target, mode=item.mode, link=link)
            except FileNotFoundError:
                raise Corrupted("a file of the cache is missing", place=str(blob)) from None
            if found != item.hash:
                raise Corrupted("a file of the cache is damaged", place=str(blob))

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            make_folders(folder)
            self._made.add(folder)


def _checksum(entry: CacheEntry) -> str:
    return hash_bytes(msgspec.json.encode(msgspec.structs.replace(entry, checksum="")))


def _files_in(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        shelves = [entry for entry in os.scandir(folder) if entry.is_dir()]
    except FileNotFoundError:
        return
    for shelf in shelves:
        for entry in os.scandir(shelf.path):
            if not entry.name.startswith(TEMPORARY):
                yield shelf.name + entry.name.removesuffix(".json"), entry


@prepared
class _Published(msgspec.Struct, frozen=True, array_like=True):
    entry: CacheEntry
    files: dict[str, str]


class SharedCache:
    def __init__(self, url: str) -> None:
        from milecastle.stores.offloading import SharedObjects  # needs the extra `objects`

        self._objects = SharedObjects(f"{url.rstrip('/')}/builds")

    def fetch(
        self, tenant: str, task_hash: str, outputs: set[str], cache: ContentCache
    ) -> CacheEntry | None:
        """Fetch a task's result into a workspace's cache; ``None`` if there is none.

        ``outputs`` are those the task declares.
        """
        from milecastle.stores.offloading.files import TenantFiles

        files = TenantFiles(self._objects, tenant, sealed=False)
        path = _shared_path(tenant, task_hash)
        published: _Published | None = None
        try:
            published = self._read(path, task_hash, outputs)
            if published is None:
                return None
            for item in _files_of(published.entry):
                if not cache.has(item):
                    file = File(published.files[item.hash], item.hash, item.size)
                    with files.open(file) as content:
                        cache.add(item.hash, content.chunks())
        except (Unavailable, FormatTooNew) as error:
            _log_miss("read", error)
            return None
        except (Corrupted, CodecError):
            with suppress(Unavailable):
                self._objects.folder.remove(path)
                for digest in published.files.values() if published else ():
                    self._objects.forget(tenant, digest)
            return None
        cache.admit(published.entry)
        return published.entry

    def publish(self, tenant: str, task_hash: str, cache: ContentCache) -> None:
        from milecastle.stores.offloading.files import TenantFiles

        files = TenantFiles(self._objects, tenant, sealed=False)
        try:
            entry = cache.load(task_hash)
            if entry is None:
                return  # evicted meanwhile
            stored = {
                item.hash: files.store(cache.blob_path(item.hash)).digest
                for item in _files_of(entry)
            }
            body = msgspec.json.encode(_Published(entry, stored))
            self._objects.folder.create(_shared_path(tenant, task_hash), frame(*compress(body)))
        except (MilecastleError, OSError) as error:
            _log_miss("write", error)

    def _read(self, path: str, task_hash: str, outputs: set[str]) -> _Published | None:
        data = self._objects.folder.read(path)
        if data is None:
            return None
        flags, body = unframe(data)
        try:
            found = msgspec.json.decode(
                decompress(body) if flags & COMPRESSED else body, type=_Published
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Corrupted("a published result cannot be read", place=path) from None
        entry = found.entry
        made = [artifact.path for artifact in entry.artifacts]
        is_fit = entry.task_hash == task_hash and sorted(made) == sorted(outputs)
        if entry.format != FORMAT or not is_fit or any(map(problem_of_items, entry.artifacts)):
            raise Corrupted("a published result is not that of its task", place=path)
        if {item.hash for item in _files_of(entry)} != found.files.keys():
            raise Corrupted("a published result does not name its files", place=path)
        return found


def _shared_path(tenant: str, task_hash: str) -> str:
    from milecastle.stores.offloading.objects import root_of

    return f"{root_of(tenant)}tasks/{task_hash}"


def _files_of(entry: CacheEntry) -> list[Item]:
    return [item for artifact in entry.artifacts for item in artifact.items if item.hash]


def _log_miss(what: str, error: Exception) -> None:
    import logging

    logging.getLogger("milecastle.builds").warning("shared cache: cannot %s: %s", what, error)
