"""People who log in to the pages at an OpenID Connect issuer."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from milecastle.server.access import Access
from milecastle.server.application import Application
from milecastle.server.oidc.issuer import Issuer
from milecastle.server.oidc.login_answer import PERSON_SESSION, UNFINISHED
from milecastle.server.oidc.settings import Oidc
from milecastle.server.service import Service
from tests import oidc_issuer
from tests.oidc_issuer import CLIENT, SECRET, ec_key
from tests.unit.server.calling import ADDRESS, Api

HTML = {"Accept": "text/html"}


class Clock:
    """Later than the issuer's, when a test says so."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Person:
    """A person's browser: it keeps cookies, with their paths, and follows what it is told to."""

    def __init__(self, api: Api, local: oidc_issuer.Issuer) -> None:
        self.api, self.local = api, local
        self.cookies: dict[str, str] = {}
        self.set: list[str] = []

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.send("GET", path, **headers)

    def send(self, method: str, path: str, **headers: str) -> httpx.Response:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {**HTML, **({"Cookie": cookie} if cookie else {}), **headers}
        response = self.api.send(method, path, sent)
        for one in response.headers.get_list("set-cookie"):
            self.set.append(one)
            name, _, value = one.partition(";")[0].partition("=")
            self.cookies.pop(name, None)
            if value not in ("", '""'):
                self.cookies[name] = value
        return response

    def begin(self, next: str = "/threads") -> str:
        """The URL of the issuer that the browser is led to."""
        response = self.get(f"/login/oidc?{urlencode({'next': next})}")
        assert response.status_code == 303, response.text
        return response.headers["location"]

    def back(self, place: str) -> str:
        """Where the issuer leads a person who logged in, as a path of this server."""
        found = self.local.log_in(place)
        assert found.startswith(f"{ADDRESS}/login/oidc/callback?")
        return found.removeprefix(ADDRESS)

    def log_in(self, next: str = "/threads") -> httpx.Response:
        return self.get(self.back(self.begin(next)))

    @property
    def session(self) -> str:
        return self.cookies.get("milecastle-8321", "")


@pytest.fixture
def local() -> Iterator[oidc_issuer.Issuer]:
    with oidc_issuer.running() as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


def serve(api: Api, local: oidc_issuer.Issuer, clock: Clock, **more: str) -> None:
    given = {"client_id": CLIENT, "client_secret": SECRET, "url": ADDRESS, **more}
    issuer = Issuer(Oidc(issuer=local.url, **given), clock=clock)
    access = Access((), issuer=issuer, clock=clock)
    api.application = Application(Service([api.app], worker=False), access)


@pytest.fixture
def person(api: Api, local: oidc_issuer.Issuer, clock: Clock) -> Person:
    serve(api, local, clock)
    return Person(api, local)


def test_person_logs_in_at_the_issuer(person: Person, local: oidc_issuer.Issuer) -> None:
    """Fails if the way back is a redirect: the browser would not send the new cookie with it."""
    first = person.get("/threads?q=a")
    assert first.status_code == 401
    link = re.search(r'href="(/login/oidc\?[^"]+)"', first.text)
    assert link is not None
    place = person.get(link[1].replace("&amp;", "&")).headers["location"]
    response = person.get(person.back(place))
    assert response.status_code == 200
    assert 'content="0; url=/threads?q=a"' in response.text
    assert "script" not in response.text
    assert person.get("/threads?q=a").status_code == 200
    assert local.forms[0]["authorization"].startswith("Basic ")
    assert SECRET not in response.text + json.dumps(person.cookies) + place


def test_answers_have_the_name_of_the_person(
    api: Api, local: oidc_issuer.Issuer, clock: Clock
) -> None:
    """Fails if the name is not the claim's, or could be that of a token."""
    api.run("t", 42)
    serve(api, local, clock)
    person = Person(api, local)
    person.log_in()
    page = person.get("/threads/t").text
    (asked,) = api.app.state("t").interrupts
    csrf = re.search(r'name="csrf" value="(\w+)"', page)
    assert csrf is not None
    cookie = f"milecastle-8321={person.session}"
    sent = {"Cookie": cookie, "Origin": ADDRESS, "Content-Type": "application/json"}
    body = {"answers": {asked.id: True}}
    done = api.send("POST", "/v1/threads/t/answers", sent, json=body)
    assert done.status_code == 202, done.text
    (record,) = api.app.answers("t")
    assert record.by is not None
    assert (record.by.id, record.by.how) == ("oidc:ann", "authenticated")
    # The claims gave read and answer, not run.
    assert api.send("POST", "/v1/threads/t/cancel", sent).status_code == 403


def test_cookies_are_for_this_server_and_not_for_scripts(person: Person) -> None:
    person.begin()
    (login,) = person.set
    assert login.startswith("milecastle-8321-login=")
    assert {"HttpOnly", "SameSite=lax", "Path=/login/oidc"} <= set(login.split("; "))
    assert f"Max-Age={UNFINISHED}" in login
    person.log_in()
    session, ended = person.set[-2:]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(session.split("; "))
    assert f"Max-Age={PERSON_SESSION}" in session
    assert "Secure" not in session  # this test is on http://127.0.0.1
    assert "Max-Age=0" in ended
    assert list(person.cookies) == ["milecastle-8321"]


def test_cookies_are_secure_if_browsers_use_https(
    api: Api, local: oidc_issuer.Issuer, clock: Clock
) -> None:
    """Fails if only the scheme of the request is looked at: a proxy ends TLS."""
    serve(api, local, clock, url="https://known.example")
    person = Person(api, local)
    place = person.begin()
    back = local.log_in(place)
    assert back.startswith("https://known.example/login/oidc/callback?")
    person.get(back.removeprefix("https://known.example"))
    assert len(person.set) == 3
    assert all("Secure" in one for one in person.set[:2])


def test_request_to_the_issuer_has_fresh_secrets(person: Person) -> None:
    """Fails if a state, nonce or challenge is used twice, or the verifier is sent."""
    found = [parse_qs(urlsplit(person.begin()).query) for _ in range(2)]
    for name in ("state", "nonce", "code_challenge"):
        assert found[0][name] != found[1][name]
        assert len(found[0][name][0]) >= 43
    assert found[0]["code_challenge_method"] == ["S256"]
    assert found[0]["response_type"] == ["code"]
    assert found[0]["redirect_uri"] == [f"{ADDRESS}/login/oidc/callback"]
    assert "code_verifier" not in found[0]


@pytest.mark.parametrize(
    "next",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "x", "",
     "/\t/evil.example", "http:/evil.example", '/"><script>'],
)  # fmt: skip
def test_way_back_is_on_this_server(person: Person, next: str) -> None:
    """Fails if the path is not looked at, or not escaped."""
    text = person.log_in(next).text
    found = re.search(r'content="0; url=([^"]*)"', text)
    assert found is not None
    assert found[1] == "/" or found[1].startswith("/&quot;&gt;&lt;script")
    assert "<script" not in text
    assert "evil" not in text


def refused(response: httpx.Response, *, status: int = 401) -> None:
    assert response.status_code == status, response.text
    assert "milecastle-8321=" not in response.headers.get("set-cookie", "")


def test_login_of_another_browser_is_refused(
    person: Person, api: Api, local: oidc_issuer.Issuer
) -> None:
    """Login CSRF: a link with the attacker's code. Fails if the state is not the browser's."""
    victim = Person(api, local)
    link = person.back(person.begin())
    refused(victim.get(link))
    victim.begin()
    refused(victim.get(link))
    assert not victim.session
    assert person.get(link).status_code == 200


def test_login_is_finished_once_and_in_time(person: Person, clock: Clock) -> None:
    """Fails if the cookie does not end, or a code is asked for again without one."""
    link = person.back(person.begin())
    kept = dict(person.cookies)
    assert person.get(link).status_code == 200
    refused(person.get(link))  # the cookie was deleted
    person.cookies = kept
    refused(person.get(link))  # and the issuer takes a code once
    late = person.back(person.begin())
    clock.now += UNFINISHED
    refused(person.get(late))


@pytest.mark.parametrize(
    "change",
    [
        {"state": "x"},
        {"state": ""},
        {"code": ""},
        {"code": "made-up"},
        {"error": "access_denied", "code": "x"},
        {"iss": "https://evil.example"},
    ],
)
def test_changed_answers_are_refused(person: Person, change: dict[str, str]) -> None:
    path, _, query = person.back(person.begin()).partition("?")
    fields = {name: values[0] for name, values in parse_qs(query).items()}
    refused(person.get(f"{path}?{urlencode({**fields, **change})}"))


def test_issuer_that_names_itself_must(person: Person, local: oidc_issuer.Issuer) -> None:
    """Mix-up. Fails if iss is not required of an issuer that says it sends it."""
    local.metadata["authorization_response_iss_parameter_supported"] = True
    link = person.back(person.begin())
    refused(person.get(link))
    link = person.back(person.begin())
    assert person.get(f"{link}&{urlencode({'iss': local.url})}").status_code == 200


ID_TOKENS: dict[str, dict[str, Any]] = {
    "of another request": {"nonce": "x"},
    "without a nonce": {"nonce": None},
    "for another client": {"aud": "other"},
    "for the API": {"aud": oidc_issuer.AUDIENCE},
    "of another issuer": {"iss": "https://evil.example"},
    "issued to another": {"azp": "other"},
    "for several, issued to nobody": {"aud": [CLIENT, "other"]},
    "expired": {"exp": 1},
}


@pytest.mark.parametrize("how", ID_TOKENS)
def test_hostile_id_token_is_refused(person: Person, local: oidc_issuer.Issuer, how: str) -> None:
    """Each fails without the check that it is named after."""
    change = ID_TOKENS[how]
    local.id_token = lambda claims: local.sign(
        {name: value for name, value in {**claims, **change}.items() if value is not None}
    )
    refused(person.log_in())
    local.id_token = local.sign
    assert person.log_in().status_code == 200


def test_id_token_signed_by_another_key_is_refused(
    person: Person, local: oidc_issuer.Issuer
) -> None:
    local.id_token = lambda claims: local.sign(claims, ec_key(9))
    refused(person.log_in())


def test_person_without_a_tenant_is_refused(person: Person, local: oidc_issuer.Issuer) -> None:
    """Fails if it falls back to a tenant of its own, or to the server's."""
    del local.person["tenant"]
    refused(person.log_in(), status=403)


def test_session_ends(person: Person, clock: Clock) -> None:
    person.log_in()
    assert person.get("/threads").status_code == 200
    clock.now += PERSON_SESSION
    assert person.get("/threads").status_code == 401


def test_logged_out_session_is_refused(person: Person) -> None:
    """Fails if logging out only deletes the cookie: a copy of it would stay valid."""
    person.log_in()
    page, copy = person.get("/threads").text, dict(person.cookies)
    csrf = re.search(r'name="csrf" value="(\w+)"', page)
    assert csrf is not None
    cookie = f"milecastle-8321={person.session}"
    sent = {"Cookie": cookie, "Origin": ADDRESS}
    form = {"csrf": csrf[1]}
    response = person.api.send("POST", "/logout", sent, data=form)
    assert (response.status_code, response.headers["location"]) == (303, "/login")
    person.cookies = copy
    assert person.get("/threads").status_code == 401


@pytest.mark.parametrize("part", [0, 1, 2])
def test_changed_session_is_refused(person: Person, part: int) -> None:
    """Fails if the signature is not looked at."""
    person.log_in()
    parts = person.session.split(".")
    flipped = "A" if parts[part][0] != "A" else "B"
    parts[part] = flipped + parts[part][1:]
    person.cookies["milecastle-8321"] = ".".join(parts)
    assert person.get("/threads").status_code == 401


def test_cookie_of_a_login_is_not_a_session(person: Person) -> None:
    """Fails if both are signed for the same purpose."""
    person.begin()
    (cookie,) = person.cookies.values()
    for text in (cookie, f"oidc.{cookie}"):
        person.cookies = {"milecastle-8321": text}
        assert person.get("/threads").status_code == 401


def test_servers_with_the_same_secret_know_a_session(
    person: Person, api: Api, local: oidc_issuer.Issuer, clock: Clock
) -> None:
    """Fails if the key is made at the start: two servers behind one name would not agree."""
    person.log_in()
    serve(api, local, clock)
    assert person.get("/threads").status_code == 200
    serve(api, local, clock, client_secret=SECRET.replace("client", "another"))
    assert person.get("/threads").status_code == 401


def test_issuer_that_is_down_keeps_nobody_who_is_in(
    person: Person, api: Api, local: oidc_issuer.Issuer, clock: Clock
) -> None:
    """Fails if a session needs the issuer."""
    person.log_in()
    serve(api, local, clock)
    local.answers["/.well-known/openid-configuration"] = (500, b"", {})
    assert person.get("/threads").status_code == 200
    refused(person.get("/login/oidc"), status=503)


@pytest.mark.parametrize("answer", [(500, b"x"), (200, b"[]"), (302, b""), (200, b"{}")])
def test_token_endpoint_that_fails_is_said(
    person: Person, local: oidc_issuer.Issuer, answer: tuple[int, bytes]
) -> None:
    local.answers["/token"] = (*answer, {"Location": "/keys"})
    response = person.log_in()
    refused(response)
    assert "the issuer did not accept the login" in response.text


def test_server_without_pages_for_people_has_no_login(api: Api, local: oidc_issuer.Issuer) -> None:
    for path in ("/login/oidc", "/login/oidc/callback?state=x&code=y"):
        assert api.send("GET", path, HTML).status_code == 404
    issuer = Issuer(Oidc(issuer=local.url, audience="a"))
    asyncio.run(issuer.known())
    api.application = Application(Service([api.app], worker=False), Access((), issuer=issuer))
    assert api.send("GET", "/login/oidc", HTML).status_code == 404
