"""The object storage below one URL, through obstore: S3, GCS, Azure, local files, memory.

Rules:

- An object confirmed by ``create`` or ``find`` is durable: for local files, the file and the names
  of its folders are synced here, because the library underneath does not. A local file is synced
  before it gets its name: a power cut must not leave a torn one's name, which the next writer
  with the same content would take for its own.
- Times are the object storage's and are compared only with each other.
- Library errors become ``Unavailable``, without a URL's passwords or signatures.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from milecastle.disk.files import PRIVATE_FILE, append, make_root, sync_folder
from milecastle.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from obstore import ObjectMeta

_STAGED = re.compile(r".+#[0-9]+")
_SCHEMES = (
    "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///folder, memory:///"
)


def _list(store: ObjectStore, prefix: str) -> Iterable[Sequence[ObjectMeta]]:
    listed: Any = cast("Any", obstore).list
    return cast("Iterable[Sequence[ObjectMeta]]", listed(store, prefix))


class Stored(NamedTuple):
    path: str
    size: int
    modified: float


class ObjectFolder:
    """Objects by path. Each is written once and never changed."""

    def __init__(self, url: str) -> None:
        self._local: Path | None = None
        self._synced: set[Path] = set()
        self._store = self._open(url)

    def _open(self, url: str) -> ObjectStore:
        scheme, _, place = url.partition("://")
        try:
            if scheme == "file":
                path = Path(unquote(place))
                if not place.startswith("/") or path == Path("/"):
                    raise ValueError("no absolute folder")
                make_root(path)
                self._local = path
                return LocalStore(path)
            return from_url(url)
        except (BaseError, ValueError):
            raise InvalidRequest(
                f"objects= takes the URL of an object storage: {_SCHEMES}; the settings of the "
                "provider (region, account, keys) are read from its environment variables"
            ) from None
        except OSError as error:
            raise Unavailable(f"the folder for objects cannot be created: {error}") from error

    def create(self, path: str, data: bytes) -> bool:
        """Store an object unless it exists; True if it did not."""
        with _translated("write"):
            try:
                if self._local is None:
                    obstore.put(self._store, path, data, mode="create", use_multipart=False)
                else:
                    _create_file(self._local / path, data)
                    self._sync_names(self._local / path)
            except (AlreadyExistsError, FileExistsError):
                self._sync(path)
                return False
        return True

    def read(self, path: str) -> bytes | None:
        with _translated("read"):
            try:
                if self._local is not None:  # without the library's threads: a fifth of the time
                    return (self._local / path).read_bytes()
                return bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    def read_range(self, path: str, start: int, end: int) -> bytes | None:
        with _translated("read"):
            try:
                if self._local is not None:
                    with (self._local / path).open("rb") as file:
                        file.seek(start)
                        return file.read(end - start)
                return bytes(obstore.get_range(self._store, path, start=start, end=end))
            except FileNotFoundError:
                return None

    def find(self, path: str) -> Stored | None:
        """An object without its bytes, or ``None``; a found one is durable."""
        with _translated("read"):
            try:
                found = obstore.head(self._store, path)
            except FileNotFoundError:
                return None
            self._sync(path)
        return Stored(path, found["size"], found["last_modified"].timestamp())

    def list(self, prefix: str) -> Iterator[Stored]:
        with _translated("list"):
            for chunk in _list(self._store, prefix):
                for found in chunk:
                    yield Stored(found["path"], found["size"], found["last_modified"].timestamp())

    def remove(self, path: str) -> None:
        with _translated("remove"):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    def remove_staged(self, prefix: str, before: float) -> None:
        if self._local is None:
            return
        with _translated("remove"):
            for file in (self._local / prefix).rglob("*#*"):
                with suppress(FileNotFoundError):  # its writer is alive
                    found = file.stat()
                    is_ours = _STAGED.fullmatch(file.name) and stat.S_ISREG(found.st_mode)
                    if is_ours and found.st_mtime < before:
                        file.unlink()

    def now(self, path: str) -> float:
        self.create(path, b"")
        found = self.find(path)
        self.remove(path)
        if found is None:
            raise Unavailable("the object storage lost an object that it had just confirmed")
        return found.modified

    def _sync(self, path: str) -> None:
        if self._local is None:
            return
        file = self._local / path
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._sync_names(file)

    def _sync_names(self, file: Path) -> None:
        sync_folder(file.parent)
        if self._local is not None and file.parent not in self._synced:
            for above in file.parent.relative_to(self._local).parents:
                sync_folder(self._local / above)
            self._synced.add(file.parent)


def _create_file(file: Path, data: bytes) -> None:
    if file.exists():
        raise FileExistsError
    make_root(file.parent)
    staged = file.with_name(f"{file.name}#{randbits(60)}")  # no object: the library lists no such
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        append(fd, data)
        os.fsync(fd)
        os.link(staged, file)
    finally:
        os.close(fd)
        staged.unlink()


@contextmanager
def _translated(verb: str) -> Generator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise Unavailable(
            f"the object storage failed to {verb} an object ({type(error).__name__}: "
            f"{_without_secrets(str(error))}): check that it can be reached, and its credentials"
        ) from None


def _without_secrets(message: str) -> str:
    line = message.strip().partition("\n")[0]
    return re.sub(r"\?\S+", "", re.sub(r"//[^/\s@]*@", "//", line))
