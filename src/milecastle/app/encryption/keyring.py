"""The keyring: encrypts an app's threads or a store, each with its own key.

Rules:

- The thread keys are in a store, wrapped by a keyring's key, as one thread each in the reserved
  tenant ``milecastle.keys``; names are hashed.
- A thread's first writer creates its key. The key store's fence ensures there is
  only one. A writer starting a thread whose key already exists gives the key a new life, so that
  it is not erased on behalf of the previous thread.
- Subgraph threads share their parent's key, and are deleted with it.
- Keys are not cached: once one is erased, the next call in any process no longer finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Final

from milecastle.app.threads.children import is_child, root_of
from milecastle.app.threads.graphless_log import GraphlessLog
from milecastle.errors import Conflict, Corrupted, InvalidRequest
from milecastle.model.checkpoint import Checkpoint
from milecastle.model.keys import KEYS_TENANT, ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.opening import find_store

if TYPE_CHECKING:
    from os import PathLike

    from milecastle.codec.encryption import KeyWrapper, ThreadSealer, WrappedKey

    _Stored = Checkpoint[dict[str, object]]

_KEY_BYTES: Final = 32
_LIFE_BYTES: Final = 8
_PAGE: Final = 1000


class Keyring:
    """Keys by id, 32 bytes each (or base64 of them). The first wraps; the others only unwrap.

    ``store`` (a URL, a name or a store) holds the threads' keys. Reading needs both this
    keyring and that store; erasing a key there makes every copy of the thread unreadable.
    """

    def __init__(self, keys: Mapping[str, bytes | str], *, store: str | Store) -> None:
        self._wrapper = _wrapper({name: _key(name, key) for name, key in keys.items()})
        self._keys = KeyStore(find_store(store) if isinstance(store, str) else store)
        self._writes = True

    def reading(self) -> Keyring:
        """The same without writing: a new thread must have a key already."""
        found = copy(self)
        found._writes = False
        return found

    @classmethod
    def from_environment(cls, *, store: str | Store | None = None) -> Keyring:
        """Keys from ``MILECASTLE_KEYS``: ``id=base64``, the current one first, commas between.

        The store is the argument, or ``MILECASTLE_KEY_STORE``.
        """
        import os

        keys = _parse(os.environ.get("MILECASTLE_KEYS", "").split(","), "MILECASTLE_KEYS")
        place = store or os.environ.get("MILECASTLE_KEY_STORE")
        if place is None:
            raise InvalidRequest(
                "no store for the thread keys: set Keyring.from_environment(store=...) or "
                "MILECASTLE_KEY_STORE"
            )
        return cls(keys, store=place)

    @classmethod
    def from_file(cls, path: str | PathLike[str], *, store: str | Store) -> Keyring:
        """Keys from a file: ``id=base64`` on each line, the current one first."""
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return cls(_parse(file, str(path)), store=store)

    def sealer(self, key: ThreadKey, *, new: bool = False) -> ThreadSealer:
        """A thread's encryption; ``new`` gives it a key if it has none."""
        from milecastle.codec.encryption import ThreadSealer

        address = _address(key)
        found = self._keys.get_latest(address)
        if new and not self._writes:
            if found is None:
                raise InvalidRequest(
                    f"thread '{key.thread}' has no key yet, and creating one would wait for the "
                    f"caller's transaction: call app.create_key('{key.thread}') before it begins"
                )
        elif new and (found is None or not is_child(key)):
            found = self._begin(address, found)
        thread_key = self._wrapper.unwrap(_wrapped(found), address.thread) if found else None
        return ThreadSealer(key, thread_key, new=new)

    def erase(self, key: ThreadKey) -> bool:
        """Erase a thread's key, which makes every copy unreadable; return whether it existed.

        A subgraph's thread shares its parent's key.
        """
        return not is_child(key) and self._keys.delete_thread(_address(key))

    def eraser(self, key: ThreadKey) -> Callable[[], bool]:
        """Erases a thread's key, unless a thread with that name starts after this call."""
        address = _address(key)
        seen = None if is_child(key) else self._keys.get_latest(address)

        def erase() -> bool:
            while seen and (found := self._keys.get_latest(address)):
                if _life(found) != _life(seen):
                    break
                with suppress(Conflict):  # a rotation, or a thread that starts: look again
                    return self._keys.store.delete(address, head=found.seq)
            return False

        return erase

    def rotate(self) -> int:
        """Wrap all threads' keys with the current key; return how many were rewrapped.

        Afterwards the other keys can be removed from the keyring. No entry is rewritten.
        """
        count = 0
        last: str | None = None
        while page := self._keys.list_threads(KEYS_TENANT, limit=_PAGE, after=last):
            count += sum(self._rewrap(info.key) for info in page)
            last = page[-1].key.thread
        return count

    def close(self) -> None:
        """Close the key store."""
        self._keys.close()

    def _begin(self, address: ThreadKey, found: _Stored | None) -> _Stored:
        from os import urandom

        from milecastle.codec.encryption import new_thread_key

        while True:
            wrapped = (
                _wrapped(found) if found else self._wrapper.wrap(new_thread_key(), address.thread)
            )
            state = _state(wrapped, urandom(_LIFE_BYTES))
            try:
                return self._keys.put(address, state, head=found.seq if found else 0)
            except Conflict:
                before, found = found, self._keys.get_latest(address)
            if found and not (before and _life(before) == _life(found)):
                return found

    def _rewrap(self, address: ThreadKey) -> int:
        while (found := self._keys.get_latest(address)) is not None:
            wrapped = _wrapped(found)
            is_old = wrapped[0] != self._wrapper.current
            try:
                if is_old:
                    secret = self._wrapper.unwrap(wrapped, address.thread)
                    again = self._wrapper.wrap(secret, address.thread)
                    self._keys.put(address, _state(again, _life(found)), head=found.seq)
                self._keys.prune(address, keep_last=1)
            except Conflict:  # another rotation, or an erasure: look again
                continue
            return int(is_old)
        return 0


class KeyStore(GraphlessLog):
    def _refuse_reserved(self, tenant: str) -> None:
        pass


def _wrapper(keys: dict[str, bytes]) -> KeyWrapper:
    if not keys:
        raise InvalidRequest("a keyring needs a key: Keyring({'2026': key}, store=...)")
    try:
        from milecastle.codec.encryption import KeyWrapper
    except ImportError as error:
        raise InvalidRequest(
            f"encryption needs a package that is not installed ({error}): "
            'pip install "milecastle[encryption]"'
        ) from None
    return KeyWrapper(keys)


def _key(name: str, given: bytes | str) -> bytes:
    from binascii import Error, a2b_base64

    try:
        key = a2b_base64(given, strict_mode=True) if isinstance(given, str) else given
    except (Error, ValueError):
        raise InvalidRequest(f"the key '{name}' is not base64") from None
    if len(key) != _KEY_BYTES:
        raise InvalidRequest(f"the key '{name}' has {len(key)} bytes; it must have {_KEY_BYTES}")
    return key


def _parse(parts: Iterable[str], place: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        text = part.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, key = text.partition("=")
        if not equals or not name.strip() or name.strip() in keys:
            raise InvalidRequest(f"key {number} of {place} is not a new id in the form id=base64")
        keys[name.strip()] = key.strip()
    if not keys:
        raise InvalidRequest(f"{place} has no keys: write id=base64, with 32 bytes as base64")
    return keys


def _address(key: ThreadKey) -> ThreadKey:
    """Where a thread's key is stored: a hash, so names are not revealed."""
    import hashlib

    name = f"{len(key.tenant)}:{key.tenant}:{root_of(key).thread}"
    return ThreadKey(KEYS_TENANT, hashlib.sha256(name.encode()).hexdigest())


def _state(wrapped: WrappedKey, life: object) -> dict[str, object]:
    return {"key_id": wrapped[0], "wrapped": wrapped[1], "life": life}


def _life(found: _Stored) -> object:
    return found.state.get("life")


def _wrapped(found: _Stored) -> WrappedKey:
    match found.state:
        case {"key_id": str(key_id), "wrapped": bytes(wrapped)}:
            return key_id, wrapped
        case _:
            raise Corrupted("the stored value is not a key", place=f"key {found.key.thread}")
