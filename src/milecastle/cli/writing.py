"""What verbs that write a checkpoint share."""

from __future__ import annotations

from typing import Any

import click

from milecastle.app.application import App
from milecastle.cli.documents import WrittenDocument
from milecastle.cli.lines import checkpoint_line, names
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.ports.store import Store

__all__ = ["print_written", "stored_app"]


def stored_app(session: Session) -> tuple[App[Any], Store]:
    """The app, which must have a store, and the store."""
    app = session.app()
    if app.store is None:
        raise click.UsageError("the app has no store, so it has no threads: name one with --store")
    return app, app.store


def print_written(session: Session, written: CheckpointMetadata, what: str) -> None:
    """Print the checkpoint that was written."""
    key = written.key
    if session.as_json:
        line = checkpoint_line(written)
        print_document(WrittenDocument(tenant=key.tenant, thread=key.thread, checkpoint=line))
        return
    print_lines([f"{what} {key.thread}@{written.seq} ({written.id}), next: {names(written.next)}"])
