r"""File names for ids: one for each, on any disk.

Rules:

- Dots and white space at both ends are removed; the characters ``\ / : * ? " < > |`` and control
  characters become ``_``; an empty result becomes ``thread``.
- A hash of the id is added wherever that changed the id, and wherever two ids could collide on some
  disk: capital letters and letters beyond ASCII (folded or normalised), ``~`` (short names), names
  that are too long, reserved by Windows, or that look as if they had a hash.
- So two names without a hash differ in plain lower-case ASCII, and two with one differ in that.
  The raw id is in the file and is verified on opening.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

LONGEST: Final = 160
"""Maximum bytes of a name before its hash; leaves room for the hash, a suffix and a temporary's
dot."""

_FORBIDDEN: Final = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f-\x9f]')
_ENDS: Final = re.compile(r"^[\s.]+|[\s.]+$")
_PLAIN: Final = re.compile(r"[ !#-)+-.0-9;=@\[\]^_`a-z{}]+")
_HASHED: Final = re.compile(r"-[0-9a-f]{20}$")
_RESERVED: Final = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])[ ]*(\.|$)", re.IGNORECASE
)


def file_name(id: str) -> str:
    cleaned = _FORBIDDEN.sub("_", _ENDS.sub("", id))
    if cleaned == id and _stands_alone(id):
        return id
    digest = blake2b(id.encode(errors="surrogatepass"), digest_size=10).hexdigest()
    name = cleaned.encode(errors="surrogatepass")[:LONGEST].decode("utf-8", "ignore") or "thread"
    if _RESERVED.match(name):
        name = f"_{name}"
    return f"{name}-{digest}"


def _stands_alone(id: str) -> bool:
    return (
        _PLAIN.fullmatch(id) is not None
        and len(id) <= LONGEST
        and not _HASHED.search(id)
        and not _RESERVED.match(id)
    )
