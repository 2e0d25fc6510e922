"""A cache that workspaces share: results of tasks in object storage, by task hash.

Below ``builds/`` in the object storage, in a folder for each tenant:

- ``tasks/TASK``: what the task gave, and under which digest each of its files is stored;
- the files, in chunks, as those of states are (``stores/offloading/files.py``), once per content.

Rules:

- What is fetched is verified before it is used: the result by its checksum and its items, a file by
  its digest and by its SHA-256. It goes into the cache of the workspace first.
- Whatever is missing, damaged, of a newer format or cannot be reached is a miss. What is damaged is
  forgotten, so that the next workspace that runs the task publishes it again.
- A task is published after its result is complete here. Failing to do so is not an error of the
  run: it is logged.
- Nothing is removed: a lifecycle rule of the bucket may remove objects below ``builds/`` by age.
- Nothing is shared between tenants, and nothing that is encrypted is shared.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
import msgspec.json

from milecastle.builds.cache import ContentCache
from milecastle.builds.hashing import problem_of_items
from milecastle.builds.records import FORMAT, CacheEntry, Item
from milecastle.codec.envelope import COMPRESSED, compress, decompress, frame, unframe
from milecastle.errors import CodecError, Corrupted, FormatTooNew, MilecastleError, Unavailable
from milecastle.model.file import File
from milecastle.stores.offloading import SharedObjects
from milecastle.stores.offloading.files import TenantFiles
from milecastle.stores.offloading.objects import root_of
from milecastle.support.prepared import prepared

__all__ = ["SharedCache"]


@prepared
class _Published(msgspec.Struct, frozen=True, array_like=True):
    """A result, and the digest of each of its files by their SHA-256."""

    entry: CacheEntry
    files: dict[str, str]


class SharedCache:
    """Results of tasks in the object storage at a URL."""

    def __init__(self, url: str) -> None:
        self._objects = SharedObjects(f"{url.rstrip('/')}/builds")

    def fetch(
        self, tenant: str, task_hash: str, outputs: set[str], cache: ContentCache
    ) -> CacheEntry | None:
        """Bring the result of a task into a workspace's cache; ``None`` if there is none.

        ``outputs`` are those that the task declares.
        """
        published: _Published | None = None
        try:
            published = self._read(tenant, task_hash, outputs)
            if published is None:
                return None
            for item in _files_of(published.entry):
                if not cache.has(item):
                    self._bring(tenant, item, published.files[item.hash], cache)
        except (Unavailable, FormatTooNew) as error:
            _log("read", error)
            return None
        except (Corrupted, CodecError):
            self._forget(tenant, task_hash, published)
            return None
        cache.admit(published.entry)
        return published.entry

    def publish(self, tenant: str, task_hash: str, cache: ContentCache) -> None:
        """Store the result of a task, which is in a workspace's cache, for others."""
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
            self._objects.folder.create(_path(tenant, task_hash), frame(*compress(body)))
        except (MilecastleError, OSError) as error:
            _log("write", error)

    def _read(self, tenant: str, task_hash: str, outputs: set[str]) -> _Published | None:
        path = _path(tenant, task_hash)
        data = self._objects.folder.read(path)
        if data is None:
            return None
        _, flags, body = unframe(data)
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

    def _bring(self, tenant: str, item: Item, digest: str, cache: ContentCache) -> None:
        files = TenantFiles(self._objects, tenant, sealed=False)
        with files.open(File(digest, item.hash, item.size)) as content:
            cache.add(item.hash, content.chunks())

    def _forget(self, tenant: str, task_hash: str, published: _Published | None) -> None:
        """Let the result be published again, with files of a new generation."""
        with suppress(Unavailable):
            self._objects.folder.remove(_path(tenant, task_hash))
            for digest in published.files.values() if published else ():
                self._objects.forget(tenant, digest)


def _path(tenant: str, task_hash: str) -> str:
    return f"{root_of(tenant)}tasks/{task_hash}"


def _files_of(entry: CacheEntry) -> list[Item]:
    return [item for artifact in entry.artifacts for item in artifact.items if item.hash]


def _log(what: str, error: Exception) -> None:
    import logging

    logging.getLogger("milecastle.builds").warning("shared cache: cannot %s: %s", what, error)
