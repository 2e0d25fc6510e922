"""Objects: large values by content, one folder for each tenant, and how writers share them.

In a tenant's folder are

- ``objects/DIGEST.GENERATION``: a value, compressed if that makes it smaller;
- ``files/DIGEST/GENERATION/``: a file, in chunks (``files.py``);
- ``current/DIGEST``: the *pointer*, the generation writers of this value use;
- ``threads/THREAD/NUMBER``: a *pin*: this thread may name objects;
- ``condemned/DIGEST.GENERATION``: the sweep found nobody who names this object.

Rules for writers, in this order; ``docs/adr/0016`` says why they are enough:

1. Put a pin for the thread, unless this process put one less than ``patience`` ago.
2. Read the pointer, or create it with a new random generation: of two writers, one creates it.
3. Put that generation's object, unless it is there.
4. Commit the entry naming it, less than ``patience`` later, or not at all.

Values encrypted with their thread's key are never shared: they have no pointer.
Names are never used again, so whatever a process does too late harms nobody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock
from time import monotonic
from typing import Final, TypeVar

import msgspec
import msgspec.msgpack

from milecastle.codec.envelope import COMPRESSED, compress, decompress, frame, unframe
from milecastle.errors import CodecError, Corrupted, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.stores.offloading.folder import ObjectFolder, Stored
from milecastle.stores.offloading.payloads import ObjectReference

THRESHOLD: Final = 1 << 20
"""Values above this many bytes become objects, unless told otherwise."""

PATIENCE: Final = 900.0
"""For how many seconds a writer relies on what it has seen in the object storage."""

GRACE: Final = 4
"""The shortest grace period of a sweep, in multiples of the patience of writers."""

K = TypeVar("K")
V = TypeVar("V")

_REMEMBERED: Final = 4096
_NAME: Final = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}")
_GENERATION: Final = re.compile(rb"[0-9a-f]{16}")


class ObjectStorage(msgspec.Struct, frozen=True, kw_only=True):
    """An object storage for large values.

    ``threshold`` is the size in bytes above which a value becomes an object. ``patience`` is for
    how many seconds a writer relies on an object it has seen: it must be the same for all writers,
    and no sweep's grace period is less than four times as much. With ``builds`` it is also a
    cache for builds: a result from one workspace is reused in another.
    """

    url: str
    threshold: int = THRESHOLD
    patience: float = PATIENCE
    builds: bool = False


class SharedObjects:
    """Objects in one object storage, as ``ObjectStorage`` describes it. Thread-safe."""

    def __init__(self, url: str, *, threshold: int = THRESHOLD, patience: float = PATIENCE) -> None:
        self.url = url
        self.folder = ObjectFolder(url)
        self.threshold = threshold
        self.patience = patience
        self._known: dict[tuple[str, str], tuple[str, float]] = {}
        self._pinned: dict[ThreadKey, float] = {}
        self._lock = Lock()

    def pin(self, key: ThreadKey) -> None:
        began = monotonic()
        with self._lock:
            if began - self._pinned.get(key, -self.patience) < self.patience:
                return
        self.folder.create(
            f"{pins_of(key)}{os.urandom(8).hex()}", msgspec.msgpack.encode([key.tenant, key.thread])
        )
        with self._lock:
            _remember(self._pinned, key, began)

    def put(self, tenant: str, value: bytes) -> ObjectReference:
        digest = blake2b(value, digest_size=32).hexdigest()
        began = monotonic()
        name = self.known(tenant, digest)
        if not name:
            name = f"{digest}.{self.generation(tenant, digest)}"
            self._store(tenant, name, value)
            self.remember(tenant, digest, name, began)
        return ObjectReference(name, len(value))

    def known(self, tenant: str, digest: str) -> str:
        """The name this process saw for a digest, less than ``patience`` ago; or nothing."""
        with self._lock:
            name, seen = self._known.get((tenant, digest), ("", 0.0))
        return name if monotonic() - seen < self.patience else ""

    def remember(self, tenant: str, digest: str, name: str, began: float) -> None:
        with self._lock:
            _remember(self._known, (tenant, digest), (name, began))

    def put_unshared(self, tenant: str, value: bytes) -> ObjectReference:
        name = f"{blake2b(value, digest_size=32).hexdigest()}.{_new_generation()}"
        self._store(tenant, name, value)
        return ObjectReference(name, len(value))

    def generation(self, tenant: str, digest: str) -> str:
        """The generation writers use for a digest; a new one if there is none."""
        found = self.pointed(tenant, digest)
        if found is None:
            generation = _new_generation()
            if self.folder.create(_pointer(tenant, digest), generation.encode()):
                return generation
            found = self.pointed(tenant, digest)
        if found is None:
            raise Unavailable("the object storage is being swept: try again")
        return found

    def pointed(self, tenant: str, digest: str) -> str | None:
        pointer = _pointer(tenant, digest)
        found = self.folder.read(pointer)
        if found is not None and not _GENERATION.fullmatch(found):
            raise Corrupted("a pointer to an object is damaged", place=pointer)
        return None if found is None else found.decode()

    def _store(self, tenant: str, name: str, value: bytes) -> None:
        path = object_path(tenant, name)
        if self.folder.find(path) is None:
            self.folder.create(path, frame(*compress(value)))

    def forget(self, tenant: str, digest: str) -> None:
        """Let the next writer begin a new generation. For caches: nothing references it."""
        self.folder.remove(_pointer(tenant, digest))
        with self._lock:
            self._known.pop((tenant, digest), None)

    def fetch(self, tenant: str, reference: ObjectReference, place: str) -> bytes:
        """A reference's value, verified; ``place`` says which entry names it.

        Raises:
            Corrupted: the object is missing or was changed, or the reference is not one.
        """
        if not _NAME.fullmatch(reference.name):
            raise Corrupted("a reference to an object is damaged", place=place)
        path = object_path(tenant, reference.name)
        where = f"{place}, object {path}"
        data = self.folder.read(path)
        if data is None:
            raise Corrupted("an object that the log names is missing", place=where)
        try:
            flags, body = unframe(data)
            value = decompress(body) if flags & COMPRESSED else body
        except CodecError as error:
            raise Corrupted(error.message, place=where) from None
        digest = blake2b(value, digest_size=32).hexdigest()
        if len(value) != reference.size or not reference.name.startswith(digest):
            raise Corrupted("an object does not have the content that its name says", place=where)
        return value

    def pinned(self, tenant: str) -> Iterator[tuple[ThreadKey, Stored]]:
        for pin in self.folder.list(f"{root_of(tenant)}threads/"):
            content = self.folder.read(pin.path)
            if content is None:
                continue  # another sweep has removed it: the thread names nothing
            try:
                found = msgspec.msgpack.decode(content, type=tuple[str, str])
            except msgspec.DecodeError:
                raise Corrupted("the pin of a thread is damaged", place=pin.path) from None
            yield ThreadKey(*found), pin


def root_of(tenant: str) -> str:
    return f"{blake2b(tenant.encode(errors='surrogatepass'), digest_size=16).hexdigest()}/"


def object_path(tenant: str, name: str) -> str:
    return f"{root_of(tenant)}objects/{name}"


def name_at(path: str) -> str | None:
    name = path.partition("/objects/")[2]
    return name if _NAME.fullmatch(name) else None


def _pointer(tenant: str, digest: str) -> str:
    return f"{root_of(tenant)}current/{digest}"


def pins_of(key: ThreadKey) -> str:
    digest = blake2b(key.thread.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{root_of(key.tenant)}threads/{digest}/"


def _new_generation() -> str:
    return os.urandom(8).hex()


def _remember(known: dict[K, V], key: K, value: V) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]
