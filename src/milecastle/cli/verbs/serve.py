from __future__ import annotations

import click

from milecastle.cli.printing import print_document, say
from milecastle.cli.session import Session
from milecastle.cli.verb import apps_argument, deliver_to_option, redact_option, verb
from milecastle.views.documents import ServeDocument


@click.command("serve")
@apps_argument
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="The address to serve; 127.0.0.1 if not set. Others than this machine need --tokens.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8321,
    metavar="PORT",
    help="The port to serve; 8321 if not set, any free one for 0.",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Bearer tokens, each with a tenant and scopes, instead of a start URL.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which the server is reached; repeatable.",
)
@click.option(
    "--worker/--no-worker",
    default=None,
    metavar="",
    help="Run what is submitted in this process; by default on every store but PostgreSQL.",
)
@click.option(
    "--oidc",
    "issuer",
    metavar="ISSUER",
    help="URL of an OpenID Connect issuer whose tokens are accepted.",
)
@click.option("--oidc-audience", metavar="NAME", help="This API's name at the issuer.")
@click.option(
    "--oidc-client", metavar="ID", help="This server's client id, for people who log in to pages."
)
@click.option(
    "--oidc-secret",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="A file with the client secret, which only its user may read.",
)
@click.option("--oidc-url", metavar="URL", help="The URL under which browsers reach this server.")
@click.option(
    "--oidc-tenant", metavar="CLAIM", help="The claim with the tenant; tenant if not set."
)
@click.option("--oidc-scopes", metavar="CLAIM", help="The claim with the scopes; scope if not set.")
@click.option("--oidc-name", metavar="CLAIM", help="The claim with the name; sub if not set.")
@click.option(
    "--oidc-prefix",
    metavar="TEXT",
    help="Prefix of the scopes for this server; milecastle: if not set.",
)
@click.option("--mcp", is_flag=True, help="Also serve the graphs as MCP tools, under /mcp.")
@click.option(
    "--hooks",
    metavar="MODULE:FUNCTION",
    help="A function that returns the hooks for events of other services, under /hooks/NAME.",
)
@deliver_to_option
@redact_option
@verb
def command(
    session: Session,
    host: str,
    port: int,
    tokens: str | None,
    hosts: tuple[str, ...],
    worker: bool | None,
    mcp: bool,
    redact: str | None,
    hooks: str | None,
    deliver_to: tuple[str, ...],
    issuer: str | None,
    **oidc: str | None,
) -> None:
    """Serve threads and runs over HTTP, until SIGTERM or Ctrl-C.

    Without --tokens or --oidc only this machine can connect, with the printed URL.
    """
    import asyncio
    import logging

    from milecastle.cli.reloading import take_dev_seat
    from milecastle.server import require_extra, require_mcp, require_oidc

    seat = take_dev_seat()
    require_extra()
    if mcp:
        require_mcp()
    if issuer is not None:
        require_oidc()
    elif any(oidc.values()):
        raise click.UsageError("the options --oidc-... need --oidc ISSUER")
    from milecastle.server.addresses import is_loopback
    from milecastle.server.application import assemble
    from milecastle.server.oidc.secrets import oidc_settings
    from milecastle.server.serving import ListeningSocket, listen, serve
    from milecastle.server.tokens import new_secret

    is_open = tokens is None and issuer is None
    if is_open and not is_loopback(host):
        raise click.UsageError(
            "--host opens the server to other machines: that needs --tokens or --oidc"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    token = None if not is_open else seat.token if seat else new_secret()
    settings = None if issuer is None else oidc_settings(issuer, oidc)
    with session.user_code():
        apps = session.apps()
        if seat is not None:
            apps = [session.with_usual_store(app) for app in apps]
        names = [*hosts, host]
        application = assemble(
            apps,
            tokens=tokens,
            token=token,
            hosts=names,
            worker=worker,
            redact=session.hook(redact),
            mcp=mcp,
            oidc=settings,
            hooks=make_hooks() if (make_hooks := session.hook(hooks)) else (),
            deliver_to=deliver_to,
        )
        listening = ListeningSocket(seat.socket, f"{host}:{port}") if seat else listen(host, port)
        url = f"http://{listening.address}/" + (f"?token={token}" if token else "")
        say(f"serving {', '.join(app.graph.name for app in apps)} on {url}")
        asyncio.run(serve(application, listening))
    from milecastle.cli.session import end_abandoned

    say("server stopped")
    if session.as_json:
        print_document(ServeDocument(url=url.partition("?")[0]))
    if application.service.worker is not None and application.service.worker.has_abandoned:
        end_abandoned(session)
