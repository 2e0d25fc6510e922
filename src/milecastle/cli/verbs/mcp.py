"""``milecastle mcp``: graphs, or operations on a store, as tools of an MCP client."""

from __future__ import annotations

from typing import Any

import click

from milecastle.cli.printing import print_document
from milecastle.cli.session import Session
from milecastle.cli.verb import apps_argument, verb
from milecastle.errors import InvalidRequest
from milecastle.views.documents import ServeDocument


@click.command("mcp")
@apps_argument
@click.option(
    "--ops",
    metavar="STORE",
    help="Serve operations on this store instead: list, show, history, diff, why, queue, errors.",
)
@click.option(
    "--write", is_flag=True, help="With --ops and an app: also retry, cancel, answer and fork."
)
@verb
def command(session: Session, ops: str | None, write: bool) -> None:
    """Serve graphs as durable tools over MCP, on standard input and output.

    A call of a tool is a run: it survives this process, and continues when it is served again.
    """
    from milecastle.server import require_mcp

    require_mcp()
    if ops is None and write:
        raise click.UsageError("--write belongs to --ops")
    import asyncio

    with session.user_code():
        asyncio.run(_serve_graphs(session) if ops is None else _serve_store(session, ops, write))
    if session.as_json:  # the client has gone
        print_document(ServeDocument(url="stdio:"))


async def _serve_graphs(session: Session) -> None:
    from milecastle.server.identity import ALL_SCOPES, Identity
    from milecastle.server.mcp.serving import serve_stdio
    from milecastle.server.mcp.tools import GraphTools
    from milecastle.server.service import Service

    service = Service(session.apps())
    caller = Identity(service.tenant, ALL_SCOPES, "mcp")
    async with service.running():
        await serve_stdio(GraphTools(service, lambda ctx: caller).server())


async def _serve_store(session: Session, url: str, write: bool) -> None:
    from milecastle.cli.verbs.explain import error_pages
    from milecastle.server.mcp.operations import OperationTools

    def explain(code: str) -> str:
        pages = error_pages()
        page = pages.get(code.upper()) or pages.get(f"MC{code}")
        if page is None:
            raise InvalidRequest(f"unknown error code '{code}'")
        return page.text

    app: Any = session.app() if write else None
    store = session.open(url) if app is None else app.store
    operations = OperationTools(store, session.tenant, session.decode, explain, app)
    await operations.server().run_stdio_async()
