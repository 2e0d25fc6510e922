"""A file in object storage, as a state names it."""

from __future__ import annotations

import msgspec

from milecastle.support.prepared import prepared

__all__ = ["File", "FilePlace"]


class File:
    """A file whose content is in object storage; ``ctx.file(path)`` stores it and returns this.

    ``name`` is the file's name without its folders, ``size`` the number of its bytes. ``digest`` is
    that of the content: unencrypted files of the same content have the same. Two files are equal if
    all three are.

    It is a name, not a right: one that was made by hand, from what is shown of another, is as good
    as the one that ``ctx.file`` returned. A checkpoint that names a file which the tenant does not
    have is refused; ``open_file`` finds the content by the digest, verifies it, and refuses a
    ``size`` that differs. What keeps others in the tenant from a file is encryption.

    ``secret`` is the key that the content of a file of an encrypted thread is encrypted with. It is
    stored in the state, which is encrypted with the key of its thread, and is never shown.
    """

    __slots__ = ("digest", "name", "secret", "size")

    def __init__(self, digest: str, name: str, size: int, secret: bytes | None = None) -> None:
        self.digest = digest
        self.name = name
        self.size = size
        self.secret = secret

    def shown(self) -> dict[str, str | int]:
        """What may be shown of it."""
        return {"name": self.name, "size": self.size, "digest": self.digest}

    def __eq__(self, other: object) -> bool:
        return self.shown() == other.shown() if isinstance(other, File) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"File(name={self.name!r}, size={self.size}, digest={self.digest!r})"


@prepared
class FilePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where the files of a tenant are: what another process needs to store and to read them."""

    url: str
    patience: float
    tenant: str
    sealed: bool
