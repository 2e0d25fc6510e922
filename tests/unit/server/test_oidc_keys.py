"""The keys of an issuer: rotated, and an issuer that hangs, is down or answers nonsense."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest
from starlette.datastructures import Headers

from milecastle.errors import InvalidRequest
from milecastle.server.access import Access
from milecastle.server.oidc import fetching, keys
from milecastle.server.oidc.issuer import Issuer
from milecastle.server.oidc.keys import FRESH, OLDEST, PAUSE, IssuerKeys
from milecastle.server.oidc.settings import Oidc
from milecastle.server.problems import Refused
from tests import oidc_issuer
from tests.oidc_issuer import AUDIENCE, CLIENT, SECRET, ec_key, public_jwk
from tests.postgres_cluster import wait_until

DISCOVERY = "/.well-known/openid-configuration"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Caller:
    """A server's access to one issuer, on one event loop, with a clock set by hand."""

    def __init__(self, issuer: oidc_issuer.Issuer) -> None:
        self.issuer, self.clock = issuer, Clock()
        self.keys = IssuerKeys(issuer.url, self.clock)
        settings = Oidc(issuer=issuer.url, audience=AUDIENCE)
        self.access = Access((), issuer=Issuer(settings, self.keys))
        self.runner = asyncio.Runner()

    def status(self, token: str) -> int:
        """The status that a request with this token gets, as the server asks for it."""
        headers = Headers({"authorization": f"Bearer {token}"})
        try:
            self.runner.run(self.access.get_ready(headers))
            self.access.identify(headers)
        except Refused as error:
            return error.status
        return 200

    def fetches(self) -> int:
        return self.issuer.requests.count(DISCOVERY)


@pytest.fixture
def local() -> Iterator[oidc_issuer.Issuer]:
    with oidc_issuer.running() as found:
        yield found


@pytest.fixture
def caller(local: oidc_issuer.Issuer) -> Iterator[Caller]:
    found = Caller(local)
    with found.runner:
        yield found


def rotate(local: oidc_issuer.Issuer) -> str:
    """The issuer has another key, and this is a token signed by it."""
    local.keys = [public_jwk(ec_key(1), "second")]
    return local.sign(local.claims(), ec_key(1), kid="second")


def test_keys_are_fetched_once(caller: Caller, local: oidc_issuer.Issuer) -> None:
    """Fails if nothing is cached."""
    assert [caller.status(local.token()) for _ in range(5)] == [200] * 5
    assert caller.fetches() == 1


def test_new_key_is_fetched_with_the_first_token_signed_by_it(
    caller: Caller, local: oidc_issuer.Issuer
) -> None:
    """Fails if an unknown key is refused until the others are old."""
    old = local.token()
    assert caller.status(old) == 200
    new = rotate(local)
    caller.clock.now = PAUSE
    assert caller.status(new) == 200
    assert caller.status(old) == 401


def test_made_up_keys_cause_few_fetches(caller: Caller, local: oidc_issuer.Issuer) -> None:
    """Fails if each of them causes one: a stranger would send the issuer our requests."""
    for number in range(20):
        token = local.sign(local.claims(), ec_key(2), kid=f"made up {number}")
        assert caller.status(token) == 401
    assert caller.fetches() == 1
    assert caller.status(local.token()) == 200
    caller.clock.now = PAUSE
    for number in range(20):
        token = local.sign(local.claims(), ec_key(2), kid=f"made up {number}")
        assert caller.status(token) == 401
    assert caller.fetches() == 2


def test_withdrawn_key_is_not_used_after_keys_were_renewed(
    caller: Caller, local: oidc_issuer.Issuer
) -> None:
    """Fails if known keys stay known, or are renewed only for an unknown one."""
    old = local.token()
    assert caller.status(old) == 200
    rotate(local)
    caller.clock.now = FRESH + 1
    assert caller.status(old) == 200  # nobody waits: it is renewed meanwhile
    wait_until(lambda: caller.status(old) == 401, 30)


def test_keys_are_used_while_the_issuer_is_down(caller: Caller, local: oidc_issuer.Issuer) -> None:
    """Fails if an issuer that is away stops this server at once, or never."""
    token = local.token()
    assert caller.status(token) == 200
    local.answers[DISCOVERY] = (503, b"", {})
    caller.clock.now = OLDEST
    assert caller.status(token) == 200
    caller.clock.now = OLDEST + PAUSE + 1
    wait_until(lambda: caller.status(token) == 503, 30)
    del local.answers[DISCOVERY]
    caller.clock.now += PAUSE
    wait_until(lambda: caller.status(token) == 200, 30)


def test_hanging_issuer_does_not_keep_the_event_loop(
    caller: Caller, local: oidc_issuer.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if keys are fetched on the event loop, or a caller waits without a limit."""
    monkeypatch.setattr(keys, "PATIENCE", 0.3)
    local.hangs.set()
    turns: list[float] = []

    async def ask() -> None:
        headers = Headers({"authorization": f"Bearer {local.token()}"})
        asking = asyncio.create_task(caller.access.get_ready(headers))
        while not asking.done():
            turns.append(time.monotonic())
            await asyncio.sleep(0.01)
        await asking
        with pytest.raises(Refused, match="does not answer") as raised:
            caller.access.identify(headers)
        assert raised.value.status == 503

    caller.runner.run(ask())
    assert len(turns) > 5
    assert len(local.requests) <= 1  # the others wait for the same fetch


def test_dripping_answer_is_given_up(
    local: oidc_issuer.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if only the time of each part of an answer is bounded."""
    monkeypatch.setattr(fetching, "PATIENCE", 0.0)
    monkeypatch.setattr(fetching, "_PART", 1)

    class Slow:
        def read1(self, size: int) -> bytes:
            time.sleep(0.01)
            return b"x" * size

    read = vars(fetching)["_read"]
    with pytest.raises(fetching.IssuerFailed, match="too long"):
        read(Slow(), time.monotonic())


BAD: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "status": (500, b"{}", {}),
    "redirect": (302, b"", {"Location": "/keys"}),
    "not JSON": (200, b"<html>", {}),
    "another issuer": (200, b'{"issuer": "https://evil.example", "jwks_uri": "x"}', {}),
    "another shape": (200, b"[]", {}),
    "too large": (200, b" " * (1024 * 1024 + 2), {}),
    "deep": (200, b"[" * 100_000, {}),
}


@pytest.mark.parametrize("how", BAD)
def test_bad_discovery_is_an_issuer_that_does_not_answer(
    caller: Caller, local: oidc_issuer.Issuer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if a redirect is followed, another issuer's document is used, or all of it is read."""
    local.answers[DISCOVERY] = BAD[how]
    with caplog.at_level(logging.ERROR):
        assert caller.status(local.token()) == 503
    assert caplog.text.count("the issuer http://127.0.0.1") == 1
    assert "Traceback" not in caplog.text
    assert "evil" not in caplog.text


@pytest.mark.parametrize(
    "place",
    ["file:///etc/passwd", "http://evil.example/keys", "ftp://127.0.0.1/keys", "//x", "keys", ""],
)
def test_keys_are_fetched_only_where_nobody_can_change_them(
    caller: Caller, local: oidc_issuer.Issuer, place: str
) -> None:
    """Fails if the issuer's document can lead this server to files, or over plain HTTP."""
    local.metadata["jwks_uri"] = place
    assert caller.status(local.token()) == 503
    local.metadata["jwks_uri"] = f"{local.url}/keys"
    local.metadata["authorization_endpoint"] = place
    caller.clock.now += PAUSE
    assert caller.status(local.token()) == (200 if place == "" else 503)


@pytest.mark.parametrize("found", [[], [{"kty": "oct", "k": "AAAA"}], [{}], [{"kty": 7}]])
def test_issuer_without_a_usable_key_is_refused(
    caller: Caller, local: oidc_issuer.Issuer, found: list[dict[str, object]]
) -> None:
    local.keys = found
    assert caller.status(local.token()) == 503


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer": "http://issuer.example", "audience": "a"},
        {"issuer": "https://issuer.example?x=1", "audience": "a"},
        {"issuer": "https://user@issuer.example", "audience": "a"},
        {"issuer": "https://", "audience": "a"},
        {"issuer": "https://issuer.example\n", "audience": "a"},
        {"issuer": "https://issuer.example"},
        {"issuer": "https://issuer.example", "client_id": CLIENT},
        {"issuer": "https://i.example", "client_id": CLIENT, "client_secret": SECRET},
        {"issuer": "https://i.example", "client_id": "x", "client_secret": "y", "url": "https://z"},
        {
            "issuer": "https://i.example",
            "client_id": "x",
            "client_secret": SECRET,
            "url": "http://z",
        },
    ],
)
def test_settings_that_cannot_be_safe_are_refused(settings: dict[str, str]) -> None:
    """Fails if plain HTTP, or a weak secret that signs sessions, is accepted."""
    with pytest.raises(InvalidRequest) as raised:
        Oidc(**settings)
    assert SECRET not in str(raised.value)


def test_settings_do_not_show_the_secret() -> None:
    settings = Oidc(
        issuer="https://i.example", client_id=CLIENT, client_secret=SECRET, url="https://z.example"
    )
    assert SECRET not in repr(settings)
    assert SECRET not in f"{settings}"
