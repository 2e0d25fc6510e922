"""Style sheets and scripts. Their hash is in their URL, so browsers request each once.

All are read once. A request is looked up among them: it is never a path.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from starlette.responses import Response

from milecastle.server.pages.view import WebPage
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest

_FOLDER: Final = Path(__file__).resolve().parent.parent / "static"
_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_FOREVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}


class StaticFile(msgspec.Struct, frozen=True):
    name: str
    url: str
    kind: str
    content: bytes


@cache
def static_files() -> dict[str, StaticFile]:
    found = [_read(path) for path in sorted(_FOLDER.rglob("*")) if path.suffix in _TYPES]
    return {file.url: file for file in found}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    url = f"/static/{sha256(content).hexdigest()[:16]}-{path.name}"
    return StaticFile(path.relative_to(_FOLDER).as_posix(), url, _TYPES[path.suffix], content)


@cache
def static_url(name: str) -> str:
    return next(file.url for file in static_files().values() if file.name == name)


@WebPage("GET", "/static/{file}", None)
async def static(request: ApiRequest) -> Response:
    file = static_files().get(f"/static/{request.path['file']}")
    if file is None:
        raise Refused(NOT_FOUND, 404, "there is no such file: load the page again")
    return Response(file.content, headers=_FOREVER, media_type=file.kind)
