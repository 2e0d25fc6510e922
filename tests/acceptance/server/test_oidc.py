"""``milecastle serve --oidc``: a real server and a local issuer; the attacks hold there, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import oidc_issuer
from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import Server, serving
from tests.acceptance.server.test_attacks import (
    test_connection_without_a_request_is_ended as test_connection_without_a_request_is_ended,
)
from tests.acceptance.server.test_attacks import (
    test_endless_body_is_refused_early as test_endless_body_is_refused_early,
)
from tests.acceptance.server.test_attacks import (
    test_what_is_not_http_gets_a_problem as test_what_is_not_http_gets_a_problem,
)
from tests.oidc_issuer import AUDIENCE, CLIENT, SECRET

SCOPES = "milecastle:read milecastle:run milecastle:answer milecastle:admin"


@pytest.fixture(scope="module")
def issuer() -> Iterator[oidc_issuer.Issuer]:
    with oidc_issuer.running() as found:
        found.person["scope"] = SCOPES
        yield found


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, issuer: oidc_issuer.Issuer
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("oidc")
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n", encoding="ascii")
    secret.chmod(0o600)
    pages = (
        "--oidc-client",
        CLIENT,
        "--oidc-secret",
        str(secret),
        "--oidc-url",
        "http://localhost",
    )
    options = ("--oidc", issuer.url, "--oidc-audience", AUDIENCE, *pages)
    with serving(f"sqlite:///{folder / 'runs.db'}", *options, how="brisk") as found:
        assert "token=" not in found.process.log
        found.client.headers["Authorization"] = f"Bearer {issuer.token()}"
        yield found


@pytest.fixture
def brisk(server: Server) -> Server:
    return server


def test_tokens_of_the_issuer_are_accepted(server: Server, issuer: oidc_issuer.Issuer) -> None:
    """Fails if the keys are not fetched, or the tenant is not the token's."""
    done = server.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
    assert (done.status_code, done.json()["status"]) == (200, "completed")
    others = {"Authorization": f"Bearer {issuer.token(tenant='rival')}"}
    assert server.client.get("/v1/threads/t", headers=others).status_code == 404
    fewer = {"Authorization": f"Bearer {issuer.token(scope='milecastle:run')}"}
    assert server.client.get("/v1/threads/t", headers=fewer).status_code == 403
    forged = {"Authorization": f"Bearer {issuer.sign(issuer.claims(), oidc_issuer.ec_key(5))}"}
    assert server.client.get("/v1/threads/t", headers=forged).status_code == 401
    assert server.client.get("/v1/threads/t", headers={"Authorization": ""}).status_code == 401


def test_open_secret_is_refused(tmp_path: Path, issuer: oidc_issuer.Issuer) -> None:
    from click.testing import CliRunner

    from milecastle.cli.main import cli

    secret = tmp_path / "secret"
    secret.write_text(SECRET, encoding="ascii")
    secret.chmod(0o644)
    pages = [
        "--oidc-client",
        CLIENT,
        "--oidc-secret",
        str(secret),
        "--oidc-url",
        "http://localhost",
    ]
    arguments = ["serve", "tests.acceptance.server.graphs:graph", "--port", "0", *pages]
    found = CliRunner().invoke(cli, [*arguments, "--oidc", issuer.url])
    assert found.exit_code != 0
    assert "chmod 600" in found.output
    assert SECRET not in found.output
    assert "need --oidc ISSUER" in CliRunner().invoke(cli, arguments).output
