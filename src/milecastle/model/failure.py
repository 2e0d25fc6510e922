"""A failure: why a run did not end well. Types, places and messages; never values of the state."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["RESUMABLE", "Failure", "FailureClass"]

FailureClass = Literal["graph", "workspace", "execution", "system"]

RESUMABLE: dict[FailureClass, bool] = {
    "graph": False,
    "workspace": False,
    "execution": True,
    "system": True,
}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of these belongs to each run that did not end well."""

    run_id: str
    failure_class: FailureClass
    resumable: bool
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: int
    time: int
    node: str | None = None
