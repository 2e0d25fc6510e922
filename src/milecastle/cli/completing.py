"""Completion of thread names: what the store that is set up here holds."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["complete_threads"]

_MOST = 50


def complete_threads(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Threads whose names begin with what was typed. Whatever goes wrong, there are none."""
    from itertools import islice, takewhile

    from milecastle.app.children import own_threads
    from milecastle.cli.session import Session

    flags = context.params
    session = Session(store=flags.get("store"), tenant=flags.get("tenant"))
    try:
        if session.url() is None:
            return []
        before = incomplete[:-1] or None
        found = own_threads(session.store(), session.tenant, after=before)
        wanted = takewhile(lambda info: info.key.thread[: len(incomplete)] <= incomplete, found)
        begun = (info for info in wanted if info.key.thread.startswith(incomplete))
        threads = islice(begun, _MOST)
        return [CompletionItem(info.key.thread, help=info.status) for info in threads]
    except Exception:  # a shell that completes has no place for errors
        return []
    finally:
        session.close()
