from __future__ import annotations

from typing import TYPE_CHECKING

import click

from milecastle.cli.printing import print_document, say
from milecastle.cli.session import Session
from milecastle.cli.verb import apps_argument, deliver_to_option, verb
from milecastle.views.documents import ServeDocument

if TYPE_CHECKING:
    from milecastle.cli.reloading import Interrupts
    from milecastle.server.serving import ListeningSocket

_HOST = "127.0.0.1"


@click.command("dev")
@apps_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="The port to serve; 8321 if not set, or a free one if that is taken.",
)
@click.option("--no-browser", is_flag=True, help="Print the URL, and do not open it.")
@deliver_to_option
@verb
def command(
    session: Session, port: int | None, no_browser: bool, deliver_to: tuple[str, ...]
) -> None:
    """Serve and run an app on this machine, and again whenever its code changes.

    Opens the web view. A configured store is used, else runs.db in this folder.
    """
    from milecastle.cli.loading import check_reference
    from milecastle.cli.reloading import Interrupts
    from milecastle.server import require_extra
    from milecastle.support.platforms import refuse_windows

    refuse_windows("milecastle dev is", "use milecastle serve, and start it again after a change")
    if session.app_reference is None:
        raise click.UsageError("no app given: milecastle dev MODULE:ATTRIBUTE")
    for reference in session.app_reference.split():
        check_reference(reference)
    require_extra()
    with Interrupts() as interrupts:
        url = _reload(session, port, not no_browser, deliver_to, interrupts)
    say("stopped")
    if session.as_json:
        print_document(ServeDocument(url=url))


def _reload(
    session: Session,
    port: int | None,
    opens: bool,
    deliver_to: tuple[str, ...],
    interrupts: Interrupts,
) -> str:
    import sys

    from milecastle.cli.reloading import Reloader
    from milecastle.server.tokens import new_secret

    listening, token = _listen(port), new_secret()
    url = f"http://{listening.address}/"
    if opens:
        _open_when_served(listening.address, f"{url}?token={token}")
    serve = [sys.executable, "-P", "-m", "milecastle", "serve", "--worker"]
    given = {
        "--store": session.typed_store,
        "--tenant": session.typed_tenant,
        "--port": str(listening.socket.getsockname()[1]),
    }
    serve += (f"{name}={value}" for name, value in given.items() if value)
    serve += (f"--deliver-to={host}" for host in deliver_to)
    serve += ["--debug"] if session.debug else []
    serve += session.typed_apps
    Reloader(session.folder, serve, listening.socket, token, interrupts).run()
    return url


def _listen(port: int | None) -> ListeningSocket:
    from milecastle.errors import InvalidRequest
    from milecastle.server.serving import listen

    if port is not None:
        return listen(_HOST, port)
    try:
        return listen(_HOST, 8321)
    except InvalidRequest:
        return listen(_HOST, 0)


def _open_when_served(address: str, url: str) -> None:
    """Open a browser once the server answers. The socket is open: a request waits until then."""
    import http.client
    import webbrowser
    from contextlib import closing, suppress
    from threading import Thread

    def wait_and_open() -> None:
        with suppress(OSError, http.client.HTTPException):
            with closing(http.client.HTTPConnection(address)) as connection:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            webbrowser.open(url)

    Thread(target=wait_and_open, daemon=True).start()
