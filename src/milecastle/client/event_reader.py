"""Server-Sent Events: bytes, as they come, to events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from milecastle.client.documents import ClientEvent

_KNOWN: Final = ("state", "emit", "missed", "stopped")


class EventReader:
    """Reads one response. A line ends with LF: a state's text may have other separators."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[bytes, bytes] = {}

    def read(self, part: bytes) -> Iterator[ClientEvent]:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name:
                self._fields[name] = value.removeprefix(b" ")
            elif not line.strip():
                fields, self._fields = self._fields, {}
                kind = fields.get(b"event", b"").decode()
                if kind in _KNOWN and b"data" in fields:  # newer servers may have more
                    id = fields[b"id"].decode() if b"id" in fields else None
                    yield _event(kind, id, msgspec.json.decode(fields[b"data"]))


def _event(kind: Any, id: str | None, data: dict[str, Any]) -> ClientEvent:
    if kind == "stopped":
        return ClientEvent(type=kind, id=id, run_id=data["thread"]["run_id"], data=data)
    found: dict[str, Any] = {
        name: data[name]
        for name in ("time", "step", "seq", "node", "task", "attempt", "state")
        if name in data
    }
    return ClientEvent(
        type=kind, id=id, run_id=data["run_id"], update=data.get("value"), data=data, **found
    )
