"""Bytes that cannot be written or read."""

from __future__ import annotations

from milecastle.errors.root import MilecastleError

__all__ = [
    "CodecError",
    "EncryptionError",
    "KeyNotFound",
    "NoKeyring",
    "PlaintextRefused",
    "UnserializableState",
    "UntrustedFile",
]


class CodecError(MilecastleError):
    """Bytes that do not decode: damaged, of an unknown type, or over a limit."""

    code = "MC500"


class UnserializableState(CodecError):
    """A value that cannot be stored. ``path`` is where (``$.docs[3].lock``)."""

    code = "MC501"

    def __init__(self, message: str, *, path: str, type_name: str, node: str | None = None) -> None:
        by = f" (returned by node '{node}')" if node else ""
        super().__init__(f"the value at {path}{by} cannot be stored: {message}")
        self.reason = message
        self.path = path
        self.type_name = type_name
        self.node = node


class UntrustedFile(CodecError):
    """A file that will not be opened because nothing vouches for it."""

    code = "MC502"


class EncryptionError(CodecError):
    """Encrypted bytes do not open: they stood elsewhere, were forged, or need another key."""

    code = "MC503"

    def __init__(self, message: str, *, thread: str | None = None, seq: int = 0) -> None:
        super().__init__(message)
        self.thread = thread
        self.seq = seq


class NoKeyring(EncryptionError):
    """The entry ``seq`` is encrypted, and this app or store was given no keyring."""

    code = "MC504"


class KeyNotFound(EncryptionError):
    """A key is not there: one that the keyring should name, or the thread's own."""

    code = "MC505"


class PlaintextRefused(EncryptionError):
    """The entry ``seq`` of ``thread`` is not encrypted, and whoever reads it asks for that."""

    code = "MC506"
