"""What ``serve`` and ``dev`` say and refuse; the server itself is not run here."""

from __future__ import annotations

import asyncio
import webbrowser
from typing import Any

import pytest

from milecastle.cli.reloading import Reloader
from milecastle.server import serving
from milecastle.server.serving import ListeningSocket
from milecastle.views.documents import ServeDocument
from tests.unit.cli.commands import Desk


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were served, each for a moment."""
    found: list[str] = []

    async def serve(application: Any, listening: ListeningSocket) -> None:
        found.append(listening.address)
        listening.socket.close()
        await asyncio.sleep(0)

    monkeypatch.setattr(serving, "serve", serve)
    return found


def test_serve_prints_its_start_url(desk: Desk, served: list[str]) -> None:
    """Fails if the document repeats the token, which is for this terminal alone."""
    said = desk.call("serve", "demo:app", "--port", "0").stderr
    assert f"serving Draft on http://{served[0]}/?token=" in said or "?token=" in said
    document = desk.json(ServeDocument, "serve", "demo:app", "--port", "0")
    assert document.url == f"http://{served[1]}/"


def test_the_worker_of_a_server_delivers_to_allowed_hosts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: only ``milecastle worker`` could, and no hook was tried with ``dev``."""
    found: list[tuple[str, ...]] = []

    async def serve(application: Any, listening: ListeningSocket) -> None:
        found.append(application.service.worker.options.deliver_to)
        listening.socket.close()
        await asyncio.sleep(0)

    monkeypatch.setattr(serving, "serve", serve)
    desk.call("serve", "demo:app", "--port", "0", "--deliver-to", "a", "--deliver-to", "b:1")
    assert found == [("a", "b:1")]


def test_other_machines_need_tokens(desk: Desk, served: list[str]) -> None:
    """Fails if anybody who reaches the port may connect."""
    said = desk.call("serve", "demo:app", "--host", "0.0.0.0", code=2).stderr
    assert "that needs --tokens" in said
    assert served == []


def test_tokens_take_the_place_of_the_start_url(desk: Desk, served: list[str]) -> None:
    entry = f'[[token]]\ntoken = "{"x" * 40}"\ntenant = "default"\nscopes = ["read"]\n'
    desk.write("tokens.toml", entry).chmod(0o600)
    said = desk.call("serve", "demo:app", "--port", "0", "--tokens", "tokens.toml").stderr
    assert f"http://{served[0]}/" in said
    assert "?token=" not in said


@pytest.mark.parametrize("browser", [True, False])
def test_dev_serves_on_this_machine(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, browser: bool
) -> None:
    """Fails if the token is an argument of the server: everybody on this machine could read it."""
    commands: list[list[str]] = []

    class Once(Reloader):
        def __init__(
            self, folder: Any, command: list[str], listening: Any, token: str, interrupts: Any
        ) -> None:
            commands.append(command)
            assert not any(token in part for part in command)
            listening.close()

        def run(self) -> None:
            pass

    monkeypatch.setattr("milecastle.cli.reloading.Reloader", Once)
    monkeypatch.setattr(webbrowser, "open", pytest.fail)
    flags = [] if browser else ["--no-browser"]
    found = desk.json(ServeDocument, "dev", "demo:app", "--port", "0", *flags)
    desk.call("dev", "demo:app", "--deliver-to", "localhost:9", *flags)
    assert found.url.startswith("http://127.0.0.1:")
    assert [command[4:6] for command in commands] == [["serve", "--worker"]] * 2
    assert ["--deliver-to=localhost:9" in command for command in commands] == [False, True]


def test_dev_needs_an_app(desk: Desk) -> None:
    assert "no app given" in desk.call("dev", "--no-browser", code=2).stderr


def test_mcp_serves_until_its_client_has_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the document is printed while the client reads the protocol on the same output."""
    pytest.importorskip("mcp")
    served: list[str] = []

    async def serve(server: Any) -> None:
        served.append(server.name)
        await asyncio.sleep(0)

    monkeypatch.setattr("milecastle.server.mcp.serving.serve_stdio", serve)
    assert desk.json(ServeDocument, "mcp", "demo:app").url == "stdio:"
    assert not desk.out("mcp", "demo:app")
    assert len(served) == 2
    assert "--write belongs to --ops" in desk.err("mcp", "demo:app", "--write", code=2)
