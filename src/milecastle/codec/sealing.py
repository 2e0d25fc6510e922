"""What seals payloads: the plain envelope, or the encryption of one thread."""

from __future__ import annotations

from typing import NoReturn, Protocol

from milecastle.model.keys import ThreadKey

__all__ = ["UNBOUND", "Sealer", "Sealers"]


class Sealer(Protocol):
    """Makes payloads of bodies and back. ``seq`` and ``kind`` or ``task`` say where they stand.

    The envelope itself is one: it does not look at the place.
    """

    def seal(self, body: bytes, seq: int, kind: int = 0, task: str | None = None) -> bytes:
        """The payload to store at this place."""
        ...

    def unseal(self, payload: bytes, seq: int, kind: int = 0, task: str | None = None) -> bytes:
        """The body that was sealed for this place; ``CodecError`` if it was not."""
        ...

    def digest(self, body: bytes) -> str:
        """Tells two bodies of one thread apart."""
        ...


class Sealers(Protocol):
    """Has a sealer for each thread."""

    def sealer(self, key: ThreadKey, *, new: bool) -> Sealer:
        """The thread's sealer; ``new`` says that the thread begins and may be given a key."""
        ...


class _Unbound:
    """Stands where a thread's sealer must be asked for first: nothing is stored in the clear."""

    def seal(self, body: bytes, seq: int, kind: int = 0, task: str | None = None) -> NoReturn:
        raise RuntimeError("an encrypting codec seals for a thread: ask for_thread(key) first")

    def unseal(self, payload: bytes, seq: int, kind: int = 0, task: str | None = None) -> NoReturn:
        raise RuntimeError("an encrypting codec opens for a thread: ask for_thread(key) first")

    def digest(self, body: bytes) -> NoReturn:
        raise RuntimeError("an encrypting codec digests for a thread: ask for_thread(key) first")


UNBOUND = _Unbound()
