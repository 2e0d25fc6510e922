"""A server under another application's path, as in ``fastapi.mount("/milecastle", asgi(app))``.

Inside the server, paths are those in its tables, wherever it is mounted: the mount point is removed
when a request comes in, and added to links and redirects when the answer goes out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from starlette.types import Scope

_MOUNT: Final = "milecastle.mount"
_LINK: Final = re.compile(r'(\s(?:href|src|action|formaction|data-live)=")(?=/)')
"""The attributes that are links. Text has no quotes in escaped HTML, so it is never meant."""


def unmounted(scope: Scope) -> Scope:
    """The request as if the server were not mounted. The path is as sent."""
    mount = quote(scope.get("root_path", "").rstrip("/"))
    raw = scope.get("raw_path")
    path = raw.decode("ascii", "replace") if raw else quote(scope["path"])
    own = mount
    if not path.startswith(mount):  # a proxy took off what the outer application knows
        own = mount.removeprefix(quote(scope.get("app_root_path", "").rstrip("/")))
    return {**scope, "path": path.removeprefix(own) or "/", "root_path": "", _MOUNT: mount}


def mount_point(scope: Mapping[str, Any]) -> str:
    found: str = scope.get(_MOUNT, "")
    return found


def mounted_html(text: str, mount: str) -> str:
    return _LINK.sub(lambda found: found[1] + mount, text) if mount else text
