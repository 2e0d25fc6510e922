"""Stores that workers share, and what was handed over to them."""

from __future__ import annotations

from typing import Any

from milecastle.app.runs.submission import Handle, require_shared
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.ports.claims import ClaimStore
from milecastle.views.lines import submit_document

__all__ = ["print_handle", "shared_store"]


def shared_store(session: Session) -> ClaimStore:
    """The store of this call, if workers can share it."""
    return require_shared(session.store())


def print_handle(session: Session, handle: Handle[Any]) -> None:
    """Print what became of a run that was handed over."""
    key = handle.thread
    if session.as_json:
        print_document(submit_document(handle))
    else:
        print_lines([f"thread {key.thread}: run {handle.run_id} is {handle.status}"])
