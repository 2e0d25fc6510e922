from __future__ import annotations

from typing import Any

import click

from milecastle.app.with_store import with_store
from milecastle.cli.printing import print_document
from milecastle.cli.session import Session, check_place
from milecastle.cli.verb import apps_argument, redact_option, verb
from milecastle.errors import InvalidRequest
from milecastle.views.documents import ExplainDocument, ServeDocument


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
@redact_option
@verb
def command(session: Session, ops: str | None, write: bool, redact: str | None) -> None:
    """Serve graphs as durable tools over MCP, on standard input and output.

    A call of a tool is a run: it survives this process, and continues when it is served again.
    """
    from milecastle.server import require_mcp

    require_mcp()
    if ops is None and write:
        raise click.UsageError("--write belongs to --ops")
    import asyncio

    with session.user_code():
        hook = session.hook(redact)
        served = _graphs(session, hook) if ops is None else _store(session, ops, write, hook)
        asyncio.run(served)
    if session.as_json:  # the client has gone
        print_document(ServeDocument(url="stdio:"))


async def _graphs(session: Session, redact: Any) -> None:
    from milecastle.server.identity import ALL_SCOPES, Identity
    from milecastle.server.mcp.serving import serve_stdio
    from milecastle.server.mcp.tools import GraphTools
    from milecastle.server.service import Service

    service = Service(session.apps(), redact=redact)
    caller = Identity(service.tenant, ALL_SCOPES, "mcp")
    async with service.running():
        await serve_stdio(GraphTools(service, lambda ctx: caller).server())


async def _store(session: Session, url: str, write: bool, redact: Any) -> None:
    from milecastle.server.identity import Identity, TokenScope
    from milecastle.server.mcp.operations import OperationTools

    check_place(url)
    store = session.open(url)
    app = with_store(session.app(), store) if write else None
    scopes = frozenset[TokenScope](("read", "admin") if write else ("read",))
    caller = Identity(session.tenant, scopes, "mcp")
    operations = OperationTools(store, caller, session.decode, _explained, app=app, redact=redact)
    await operations.server().run_stdio_async()


def _explained(code: str) -> ExplainDocument:
    from milecastle.cli.verbs.explain import find_page

    page = find_page(code)
    if page is None:
        raise InvalidRequest("there is no such error code: one is like MC301")
    return ExplainDocument(code=page.code, title=page.title, text=page.text)
