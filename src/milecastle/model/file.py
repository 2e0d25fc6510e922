"""A file in object storage, as named in a state."""

from __future__ import annotations

import msgspec

from milecastle.support.prepared import prepared


class File:
    """A file whose content is in object storage; ``ctx.file(path)`` stores it and returns this.

    ``name`` is the file's name without its folders, ``size`` the number of its bytes. ``digest`` is
    the content's: unencrypted files with equal content share it. Two files are equal if all three
    are.

    It is a name, not a right: one made by hand, from the displayed fields of another, is as good as
    the one ``ctx.file`` returned. A checkpoint naming a file which the tenant does not have is
    refused; ``open_file`` finds the content by the digest, verifies it, and refuses a ``size`` that
    differs. Encryption keeps others in the tenant from a file.

    ``secret`` is the key for an encrypted thread's file. It is
    stored in the state, which is encrypted with its thread's key, and is never shown.
    """

    __slots__ = ("digest", "name", "secret", "size")

    def __init__(self, digest: str, name: str, size: int, secret: bytes | None = None) -> None:
        self.digest = digest
        self.name = name
        self.size = size
        self.secret = secret

    def shown(self) -> dict[str, str | int]:
        """Displayable fields."""
        return {"name": self.name, "size": self.size, "digest": self.digest}

    def __eq__(self, other: object) -> bool:
        return self.shown() == other.shown() if isinstance(other, File) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"File(name={self.name!r}, size={self.size}, digest={self.digest!r})"


@prepared
class FilePlace(msgspec.Struct, frozen=True, array_like=True):
    url: str
    patience: float
    tenant: str
    sealed: bool
