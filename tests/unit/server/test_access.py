"""Tokens, cookies, Host and Origin."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from milecastle.errors import InvalidRequest
from milecastle.server import asgi, event_stream, events
from milecastle.server.access import Access, cookie_name, refuse_foreign
from milecastle.server.application import Application
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.problems import Refused
from milecastle.server.service import Service
from milecastle.server.tokens import TokenFile, read_tokens
from tests.unit.server.calling import ADDRESS, Api, token_of

GOOD = """
[[token]]
name = "ci"
token = "0123456789abcdef0123456789abcdef"
tenant = "acme"
scopes = ["read", "run"]
"""


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_tokens_have_a_tenant_and_scopes(tmp_path: Path) -> None:
    (token,) = read_tokens(written(tmp_path, GOOD))
    assert token.text == "0123456789abcdef0123456789abcdef"
    assert token.identity == Identity("acme", frozenset({"read", "run"}), "ci")
    assert token.expires is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """Fails if the mode of the file is not looked at."""
    with pytest.raises(InvalidRequest, match="chmod 600"):
        read_tokens(written(tmp_path, GOOD, mode))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml",
        GOOD.replace("[[token]]", "[[other]]"),
        GOOD.replace('"run"', '"fly"'),
        GOOD.replace("name", "nme"),
        GOOD.replace('tenant = "acme"', ""),
        GOOD.replace("0123456789abcdef0123456789abcdef", "sekrit"),
        GOOD.replace('"acme"', '"milecastle.keys"'),
        GOOD + "expires = 2027-01-01T00:00:00\n",
        GOOD + "expires = 2027-01-01\n",
        GOOD + 'expires = "next year"\n',
        GOOD + "expires = 1800000000\n",
    ],
)
def test_broken_file_is_refused_without_its_tokens(tmp_path: Path, text: str) -> None:
    """Fails if a short token is accepted, or a token is in the message."""
    with pytest.raises(InvalidRequest) as raised:
        read_tokens(written(tmp_path, text))
    assert "0123" not in str(raised.value)
    assert "sekrit" not in str(raised.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_tokens(tmp_path / "nothing")


def test_server_without_any_token_is_refused(api: Api) -> None:
    """Fails if an application without tokens is public."""
    with pytest.raises(InvalidRequest, match="nothing is public"):
        asgi(api.app)


@pytest.mark.parametrize(
    "token", ["", "a", "x" * 31, "é" * 32], ids=["empty", "one", "31", "not ASCII"]
)
def test_weak_token_is_refused(api: Api, token: str) -> None:
    """Failed before tokens other than those of a file were checked: an empty one is no secret."""
    with pytest.raises(InvalidRequest, match="shorter than 32 characters, or not ASCII"):
        asgi(api.app, token=token)
    identity = Identity("default", ALL_SCOPES)
    with pytest.raises(InvalidRequest, match="shorter than 32"):
        Access([(token, identity)])
    assert asgi(api.app, token="x" * 32) is not None


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer x", f"Basic {token_of('default')}", "Bearer \udcff"],
)
def test_unknown_token_is_refused(given: str) -> None:
    access = Access([(token_of("default"), Identity("default", ALL_SCOPES))])
    headers = Headers(raw=[(b"authorization", given.encode("latin-1", "replace"))])
    with pytest.raises(Refused) as raised:
        access.identify(headers)
    assert raised.value.status == 401


def test_start_url_is_exchanged_for_a_cookie(api: Api) -> None:
    """Fails if the cookie is the token, can be read by scripts, or is sent from other sites."""
    response = api.ask("GET", f"/?token={'start' * 10}", token=None)
    assert response.status_code == 303
    assert response.headers["location"] == "/overview"
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("milecastle-8321=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "start" * 10 not in cookie
    sent = {"Cookie": cookie.partition(";")[0]}
    assert api.ask("GET", "/v1/threads", token=None, headers=sent).status_code == 200
    assert api.ask("GET", "/", token=None, headers=sent).status_code == 200
    wrong = {"Cookie": f"{sent['Cookie']}x"}
    assert api.ask("GET", "/v1/threads", token=None, headers=wrong).status_code == 401


def test_wrong_start_url_is_refused(api: Api) -> None:
    assert api.ask("GET", "/?token=wrong", token=None).status_code == 401
    assert api.ask("GET", f"/?token={token_of('default')}", token=None).status_code == 401
    assert api.ask("GET", "/", token=None).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]:80", "10.1.2.3:99", "LOCALHOST:1", "a.b."])
def test_known_host_is_accepted(host: str) -> None:
    refuse_foreign(Headers({"host": host}), {"localhost", "a.b"})
    refuse_foreign(Headers({"host": host, "origin": f"http://{host}"}), {"localhost", "a.b"})
    refuse_foreign(Headers({"host": host, "origin": f"https://{host}"}), {"localhost", "a.b"})


@pytest.mark.parametrize("name", ["Api.Example", "api.example.", "API.EXAMPLE."])
def test_names_are_accepted_as_they_are_given(api: Api, name: str) -> None:
    """Failed for a name with a dot at its end before given names were normalized as Host is.

    Fails for capitals if names are not made lower case.
    """
    api.serve(api.app, hosts=[name])
    for host in ("api.example", "Api.Example:81", "api.example."):
        assert api.ask("GET", "/v1/graphs", headers={"Host": host}).status_code == 200
    assert api.ask("GET", "/v1/graphs", headers={"Host": "example"}).status_code == 403


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example", "a@localhost", ":"])
def test_unknown_host_is_refused(host: str) -> None:
    """Fails if a name is compared by its beginning or its end."""
    with pytest.raises(Refused):
        refuse_foreign(Headers({"host": host}), {"localhost"})


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://localhost", "http://localhost:81.evil", "http://evil.example", "file://"],
)
def test_foreign_origin_is_refused(origin: str) -> None:
    """Fails if the port is not compared: pages of other ports send the same cookies."""
    with pytest.raises(Refused):
        refuse_foreign(Headers({"host": "localhost:81", "origin": origin}), {"localhost"})


def test_cookie_is_named_after_the_port() -> None:
    assert cookie_name("localhost:81") == "milecastle-81"
    assert cookie_name("[::1]:82") == "milecastle-82"
    assert cookie_name("localhost") == "milecastle-80"
    assert ADDRESS.endswith(":8321")


def bearer(token: str) -> Headers:
    return Headers({"Host": ADDRESS, "Authorization": f"Bearer {token}"})


def test_tokens_are_those_that_the_file_has_now(tmp_path: Path) -> None:
    """Fails if the file is read once: then a token that was taken out is known until a restart."""
    old, new = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    access = Access((), file=TokenFile(written(tmp_path, GOOD)))
    session = Headers({"Host": ADDRESS, "Cookie": f"milecastle-80={access.open_session(old)}"})
    assert access.identify(bearer(old)).tenant == "acme"
    assert access.identify(session).tenant == "acme"
    written(tmp_path, GOOD.replace(old, new))  # of the same size
    assert access.identify(bearer(new)).tenant == "acme"
    for gone in (bearer(old), session):
        with pytest.raises(Refused):
            access.identify(gone)
    replaced = tmp_path / "new.toml"
    replaced.write_text(GOOD, encoding="utf-8")
    replaced.chmod(0o600)
    replaced.rename(tmp_path / "tokens.toml")
    assert access.identify(session).scopes == {"read", "run"}


@pytest.mark.parametrize("harm", ["torn", "open", "gone"])
def test_file_that_cannot_be_read_any_more_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    """Fails if a mistake in the file locks everybody out, is not logged, or is logged each time."""
    if harm == "open" and os.name != "posix":
        pytest.skip("there are no modes")
    token = "0123456789abcdef" * 2
    path = written(tmp_path, GOOD)
    access = Access((), file=TokenFile(path))
    if harm == "gone":
        path.unlink()
    else:
        written(tmp_path, GOOD[:-9] if harm == "torn" else GOOD, 0o600 if harm == "torn" else 0o644)
    for _ in range(3):
        assert access.identify(bearer(token)).tenant == "acme"
    assert caplog.text.count("the tokens as they were stay in use") == 1
    assert token not in caplog.text
    written(tmp_path, GOOD.replace(token, "f" * 32))
    with pytest.raises(Refused):
        access.identify(bearer(token))


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2027, 1, 1, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


def cookie(session: str) -> Headers:
    return Headers({"Host": ADDRESS, "Cookie": f"milecastle-80={session}"})


def test_expired_token_is_refused_and_its_holder_is_told_so(tmp_path: Path) -> None:
    """Fails if expiry is looked at when the file is read, or not for sessions; tried: both."""
    clock, token = Clock(), "0123456789abcdef" * 2
    path = written(tmp_path, GOOD + "expires = 2027-01-01T02:00:01+02:00\n")
    access = Access((), file=TokenFile(path), clock=clock)
    session = access.open_session(token)
    for headers in (bearer(token), cookie(session)):
        assert access.identify(headers).name == "ci"
    clock.now += 1
    for headers in (bearer(token), cookie(session)):
        with pytest.raises(Refused, match="'ci' expired at 2027-01-01 02:00:01") as raised:
            access.identify(headers)
        assert (raised.value.status, raised.value.problem.code) == (401, "MC608")
        assert token not in raised.value.detail
    with pytest.raises(Refused, match="expired"):
        access.open_session(token)
    access.end_session(cookie(session))  # logging out is still possible
    written(tmp_path, GOOD + "expires = 2027-01-01T00:00:02Z\n")
    assert access.identify(bearer(token)).name == "ci"


@pytest.mark.parametrize("given", ["0123456789abcdef" * 2 + "x", "0123456789abcdef", "x" * 32])
def test_others_do_not_read_that_a_token_has_expired(tmp_path: Path, given: str) -> None:
    """Fails if the answer to an unknown token depends on there being an expired one."""
    path = written(tmp_path, GOOD + "expires = 2001-01-01T00:00:00Z\n")
    access = Access((), file=TokenFile(path))
    forged = f"99999999999.{given}.{'0' * 64}"
    for headers in (bearer(given), cookie(forged)):
        with pytest.raises(Refused, match="send a token") as raised:
            access.identify(headers)
        assert "ci" not in raised.value.detail


def test_stream_ends_when_its_token_expires(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the caller is only looked at when the stream begins."""
    monkeypatch.setattr(event_stream, "RECHECK", 0.0)
    monkeypatch.setattr(events, "HEARTBEAT", 0.05)
    clock, token = Clock(), "0123456789abcdef" * 2
    text = GOOD.replace("acme", "default") + "expires = 2027-01-01T00:00:01Z\n"
    file = TokenFile(written(tmp_path, text))
    api.run("a", 42)
    access = Access((), file=file, clock=clock)
    api.application = Application(Service([api.app], worker=False), access)
    seen: list[int] = []

    def expire(text: str) -> bool:
        if not seen and "still here" in text:
            clock.now += 1
            api.app.update_state("a", {"n": 7})
            seen.append(len(text))
        return bool(seen) and len(text) > seen[0]

    text = api.follow("/v1/threads/a/events", token=token, is_enough=expire)
    assert len(text) == seen[0], text[seen[0] :]


def test_token_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    """Failed: the last one won, so a caller had the tenant and the scopes of another."""
    with pytest.raises(InvalidRequest, match="twice"):
        read_tokens(written(tmp_path, GOOD + GOOD.replace("acme", "rival")))


def test_tenant_without_a_name_is_refused(tmp_path: Path) -> None:
    """Failed: each request of the token was answered with 400."""
    with pytest.raises(InvalidRequest, match="must not be empty"):
        read_tokens(written(tmp_path, GOOD.replace("acme", "")))


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
@pytest.mark.parametrize(
    ("method", "mode", "to", "is_fine"),
    [
        ("GET", "navigate", "document", True),
        ("GET", "navigate", "iframe", False),
        ("GET", "no-cors", "image", False),
        ("GET", "cors", "empty", False),
        ("POST", "navigate", "document", False),
    ],
)
def test_session_is_not_for_pages_of_other_origins(
    api: Api, site: str, method: str, mode: str, to: str, is_fine: bool
) -> None:
    """Failed: an image on another page of the host read and cancelled with the operator's cookie.

    A token in a header is not sent by a browser on its own, and needs no such check.
    """
    session = api.application.access.open_session(token_of("default"))
    sent = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": to}
    cookie = {"Cookie": f"{cookie_name(ADDRESS.removeprefix('http://'))}={session}"}
    path = "/v1/threads" if method == "GET" else "/v1/threads/t/cancel"
    found = api.send(method, path, {**sent, **cookie})
    assert (found.status_code != 403) is is_fine
    token = {"Authorization": f"Bearer {token_of('default')}"}
    assert api.send(method, path, {**sent, **token}).status_code != 403
    own = {**sent, "Sec-Fetch-Site": "same-origin"}
    assert api.send(method, path, {**own, **cookie}).status_code != 403
