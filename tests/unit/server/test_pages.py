"""What holds for every page, read off the table: a new one cannot be forgotten."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from milecastle.server.access import SESSION, Access, credential
from milecastle.server.health import OVERVIEW
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.limits import MOST_BODY
from milecastle.server.pages.forms import FORM
from milecastle.server.pages.rendering import Renderer, command_line
from milecastle.server.pages.static import static_files
from milecastle.server.pages.table import PAGES
from milecastle.server.pages.view import WebPage
from milecastle.server.problems import Refused
from milecastle.server.routes import ENDPOINTS
from tests.unit.server.browsing import HTML, LARGEST, Browser, read
from tests.unit.server.building import build_files
from tests.unit.server.calling import ADDRESS, OTHER, Api, token_of

GUARDED = [page for page in PAGES if page.scope is not None]
FORMS = [page for page in PAGES if page.form is not None]
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LoginForm": {"token": token_of("default")},
    "LogoutForm": {},
    "ColoursForm": {"colours": "dark"},
    "ActionForm": {"thread": ["t"]},
    "AnswerForm": {"question": "2.2%3Aask%2F0", "field": "", "value": "true"},
    "DiscardForm": {"number": 1},
    "ForkForm": {"at": 1},
    "TagForm": {"add": "x"},
    "UpdateForm": {"update": "{}"},
    "StartForm": {"thread": "new", "field": ["n", "log"], "value": ["1", "[]"]},
    "ChatForm": {"message": "x"},
    "LimitForm": {"action": "pause", "graph": "trip"},
    "ScheduleForm": {"action": "pause", "graph": "trip", "name": "none"},
    "ViewForm": {"name": "x"},
    "InboxForm": {"question": ["t/none"], "kind": "none"},
    "POST /runs/retry": {"status": "failed", "graph": "trip"},
    "POST /runs/cancel": {"status": "queued", "graph": "trip"},
    "POST /runs/delete": {"status": "completed", "graph": "trip"},
}
"""What a form is sent with, about the thread ``t``: by its page, or by its type."""
NOT_HERE: Final = {"POST /threads/{thread}/chat", "POST /schedules"}
"""Forms that the thread ``t`` and its graph refuse: it has no messages and no schedule."""
FILE = re.compile(r"/static/|\.svg$")
"""What is not HTML."""
PLACES = {"thread": "t", "graph": "trip", "file": "none", "job": "none", "run": "none"}


def request_of(page: WebPage, **places: str) -> tuple[str, str, dict[str, Any]]:
    fields: dict[str, Any] = {}
    if page.form is not None:
        fields["data"] = dict(FIELDS.get(page.name) or FIELDS[page.form.__name__])
    return page.method, page.path.format(**{**PLACES, **places}), fields


def named(pages: list[WebPage]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda one: one.name)


def test_only_these_need_no_session() -> None:
    """Fails if a page is added without a scope, or one that writes with the scope ``read``."""
    open_pages = ["GET /static/{file}", "GET /login", "POST /login", "POST /logout"]
    open_pages += ["GET /login/oidc", "GET /login/oidc/callback", "POST /colours", "POST /views"]
    assert [page.name for page in PAGES if page.scope is None] == open_pages
    assert [page.name for page in GUARDED if (page.method == "GET") != (page.scope == "read")] == []
    assert [page.name for page in PAGES if (page.method == "POST") != bool(page.form)] == []
    names = [*(one.name for one in PAGES), *(one.name for one in ENDPOINTS)]
    assert len(set(names)) == len(names)
    assert OVERVIEW in {page.path for page in PAGES}


def test_api_is_described_without_pages(api: Api) -> None:
    """Fails if pages are added to the table of routes."""
    described = api.ask("GET", "/v1/openapi.json").json()["paths"]
    assert not {page.path for page in PAGES} & set(described)


@named(GUARDED)
def test_page_without_a_session_says_how_to_get_in(api: Api, page: WebPage) -> None:
    """Fails if a page is answered without a session, or if the problem is JSON."""
    browser = Browser(api)
    method, path, more = request_of(page)
    for cookies in ({}, {"milecastle-8321": "1.2.3"}):
        browser.cookies = dict(cookies)
        response = browser.ask(method, path, **more)
        assert response.status_code == 401
        found = read(response)
        assert "milecastle serve" in found.one("main").text
        assert found.one("input", name="token").get("type") == "password"


@named(GUARDED)
def test_session_without_the_scope_is_refused(api: Api, page: WebPage) -> None:
    """Every other scope is there. Fails if the scope of a page is not compared."""
    assert page.scope is not None
    browser = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {page.scope})))
    method, path, more = request_of(page)
    response = browser.ask(method, path, **more)
    assert response.status_code == 403
    assert "MC602" in read(response).one("main").text


@named([page for page in FORMS if page.scope is not None])
@pytest.mark.parametrize("script", [True, False])
def test_form_shows_nothing_to_those_who_may_not_read(
    api: Api, page: WebPage, script: bool
) -> None:
    """Broken before: the inbox and the page of a graph came back with what they show to readers."""
    api.run("t", 42)
    browser = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {"read"})))
    method, path, more = request_of(page)
    data = {"csrf": browser.csrf, **more["data"]}
    for fields in (data, {**data, "thread": "x" * 600}):
        headers = {"HX-Request": "true"} if script else {}
        answer = browser.ask(method, path, data=fields, headers=headers)
        assert "sure?" not in answer.text
        assert 'class="count' not in answer.text
        assert "Manifest" not in answer.text


@named(FORMS)
def test_form_without_its_token_is_refused(api: Api, page: WebPage) -> None:
    """Missing, wrong, and of another session of the same token.

    Fails if the token is not compared, or is the same for all sessions.
    """
    api.run("t", 42)
    browser = Browser(api).log_in(token_of("default"))
    other = Browser(api).log_in(token_of("default")).csrf
    assert other != browser.csrf
    method, path, more = request_of(page)
    for csrf in (None, "", "wrong", "\udcff", other):
        data = (
            more["data"]
            if csrf is None
            else {**more["data"], "csrf": csrf.encode("utf-8", "replace")}
        )
        response = browser.ask(method, path, data=data, headers={"Content-Type": FORM})
        assert response.status_code == 403, csrf
        assert "MC603" in read(response).one("main").text
    right = {**more["data"], "csrf": browser.csrf}
    expected = (400,) if page.name in NOT_HERE else (200, 303)
    assert browser.ask(method, path, data=right).status_code in expected


@named(list(PAGES))
def test_foreign_page_and_unknown_host_are_refused(api: Api, page: WebPage) -> None:
    """Also with the right token. Fails if a page is answered before they are looked at."""
    browser = Browser(api).log_in(token_of("default"))
    method, path, more = request_of(page)
    data = {"data": {**more["data"], "csrf": browser.csrf}} if more else {}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
    ):
        response = browser.ask(method, path, headers=headers, **data)
        assert response.status_code == 403
        assert "MC603" in read(response).one("main").text


@named(FORMS)
def test_form_that_cannot_be_read_is_refused(api: Api, page: WebPage) -> None:
    """Fails if a form has no limit, or JSON is taken for one."""
    browser = Browser(api).log_in(token_of("default"))
    method, path, _ = request_of(page)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    csrf = f"csrf={browser.csrf}&"
    for content, status in (
        (csrf.encode() + b"x=" + b"y" * MOST_BODY, 413),
        (csrf.encode() + b"x=1&" * 2000, 400),
        (csrf.encode() + b"none=1", 400),
        (csrf.encode() + b"token=%FF", 400),
        (csrf.encode() + b"token=\xff", 400),
        (b"nothing", 400),
    ):
        response = browser.ask(method, path, content=content, headers=kind)
        assert response.status_code == status, content[:100]
        read(response)
    assert browser.ask(method, path, json={}).status_code == 415


OWN = [page for page in PAGES if page.method == "GET" and not FILE.search(page.path)]


@named([page for page in OWN if "/oidc" not in page.path])  # those lead elsewhere
def test_page_has_landmarks_and_its_command(browser: Browser, api: Api, page: WebPage) -> None:
    """``Document`` refuses what is inline. Fails if a page does not extend the layout."""
    api.run("t", 42)
    job = api.ask("POST", "/v1/runs/cancel", json={"status": "queued"}).json()["job"]
    places = {"job": job}
    if page.path.startswith("/builds/"):
        places |= {"graph": "files", "run": build_files(api).build({}).run_id}
    found = browser.page(request_of(page, **places)[1])
    for name in ("main", "h1"):
        found.one(name)
    assert found.all("title")[0].text.endswith(" - Milecastle")
    found.one("header", **{"class": "top"})
    found.one("footer", **{"class": "foot"})
    assert found.commands()[0].startswith("milecastle ")
    assert found.one("html").get("lang") == "en"
    for link in found.all("a"):
        if link.get("href").startswith("/"):
            assert browser.ask("GET", link.get("href")).status_code in (200, 303), link.get("href")
    for element in (*found.all("link"), *found.all("script")):
        url = element.get("href") or element.get("src")
        assert browser.ask("GET", url).status_code == 200


def test_navigation_has_the_pages_that_exist(api: Api, browser: Browser) -> None:
    """Fails if a page is missing, or builds are shown although no graph has any."""
    labelled = [page.label for page in PAGES if page.label and page.label != "Builds"]
    found = [one.text for one in browser.page("/threads").all("a") if one.get("data-go")]
    assert found == labelled
    build_files(api)
    found = [one.text for one in browser.page("/threads").all("a") if one.get("data-go")]
    assert found == [*labelled, "Builds"]


def test_paths_that_do_not_exist_are_pages_for_browsers(browser: Browser, api: Api) -> None:
    """Fails if a browser gets JSON, or a client of the API gets HTML."""
    assert "MC604" in browser.page("/nothing", 404).one("main").text
    assert browser.ask("DELETE", "/threads").status_code == 405
    assert api.send("GET", "/nothing", {}).headers["content-type"] == "application/problem+json"
    answer = browser.ask("GET", "/v1/threads/none")
    assert answer.headers["content-type"] == "application/problem+json"


def test_unexpected_error_is_a_page_without_its_text(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the text of an exception, which may have values of a state, is shown."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("sekrit")

    monkeypatch.setattr("milecastle.server.pages.threads.recent_page", broken)
    response = browser.ask("GET", "/threads")
    assert response.status_code == 500
    assert "sekrit" not in response.text
    assert "log of the server" in read(response).one("main").text


def test_start_url_leads_to_the_overview(api: Api) -> None:
    browser = Browser(api)
    answer = browser.ask("GET", f"/?token={'start' * 10}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/overview")
    browser.page("/overview")
    again = browser.ask("GET", "/")
    assert (again.status_code, again.headers["location"]) == (303, "/overview")
    assert Browser(api).ask("GET", "/?token=wrong").status_code == 401
    assert "milecastle serve" in Browser(api).page("/", 401).one("main").text


@pytest.mark.parametrize(
    ("next", "place"),
    [
        ("/threads?status=failed", "/threads?status=failed"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("", "/"),
    ],
)
def test_login_leads_back_to_this_server_only(api: Api, next: str, place: str) -> None:
    """Fails if ``next`` is not looked at: a link would lead to another site after the login."""
    browser = Browser(api)
    data = {"csrf": browser.csrf, "token": token_of("default"), "next": next}
    answer = browser.ask("POST", "/login", data=data)
    assert (answer.status_code, answer.headers["location"]) == (303, place)
    shown = Browser(api).page("/threads?status=failed", 401)
    assert shown.one("input", name="next").get("value") == "/threads?status=failed"


def test_session_has_the_identity_of_its_token(api: Api) -> None:
    """Fails if every session is that of the start URL."""
    api.run("mine", 1)
    assert "mine" in Browser(api).log_in(token_of("default")).page("/threads").texts("th")
    other = Browser(api).log_in(token_of(OTHER))
    assert "mine" not in other.page("/threads").one("main").text
    assert OTHER in other.page("/threads").one("header", **{"class": "top"}).text
    wrong = Browser(api)
    shown = wrong.post("/login", {"token": "wrong" * 10, "next": "/runs"}, 401)
    assert wrong.cookies == {}
    assert "does not accept this token" in shown.one("p", role="alert").text
    assert shown.one("input", name="next").get("value") == "/runs", "the way back is lost"


def test_form_without_a_session_needs_its_origin(api: Api) -> None:
    """Its token is known to everybody. Fails if a form is taken without an ``Origin``."""
    browser = Browser(api)
    data = {"csrf": browser.csrf, "token": token_of("default")}
    answer = api.send("POST", "/login", HTML, data=data)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_cookie_is_for_this_server_alone(api: Api) -> None:
    """Fails if scripts can read it, other sites send it, or it is sent without the TLS it had."""
    for origin, is_secure in ((ADDRESS, False), (ADDRESS.replace("http", "https"), True)):
        browser = Browser(api)
        data = {"csrf": browser.csrf, "token": token_of("default")}
        answer = browser.ask("POST", "/login", data=data, headers={"Origin": origin})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ("Secure" in cookie) is is_secure
        assert token_of("default") not in cookie


def test_log_out_ends_the_session_of_the_browser(browser: Browser) -> None:
    answer = browser.ask("POST", "/logout", data={"csrf": browser.csrf})
    assert answer.headers["location"] == "/login"
    assert 'milecastle-8321=""' in answer.headers["set-cookie"]


def test_session_that_is_logged_out_is_refused(api: Api) -> None:
    """Fails if only the cookie is deleted: a copy of it would still open every page."""
    one, other = (Browser(api).log_in(token_of("default")) for _ in range(2))
    copied = dict(one.cookies)
    one.ask("POST", "/logout", data={"csrf": one.csrf})
    one.cookies = copied
    assert one.ask("GET", "/threads").status_code == 401
    assert api.send("GET", "/v1/threads", {"Cookie": _sent(copied)}).status_code == 401
    assert other.ask("GET", "/threads").status_code == 200
    assert one.log_in(token_of("default")).ask("GET", "/threads").status_code == 200


def _sent(cookies: dict[str, str]) -> str:
    return "; ".join(f"{name}={text}" for name, text in cookies.items())


def test_sessions_that_were_logged_out_are_forgotten_when_they_are_over() -> None:
    """Fails if they pile up, or if a session that nobody signed is remembered."""
    from starlette.datastructures import Headers

    now = [1000.0]
    access = Access([("a" * 32, Identity("default", ALL_SCOPES))], clock=lambda: now[0])
    for session in ("", "1.2.3", f"{10**12}.x.{'0' * 64}"):
        access.end_session(Headers({"host": "a", "cookie": f"milecastle-80={session}"}))
    assert vars(access)["_ended"] == {}
    for _ in range(3):
        cookie = f"milecastle-80={access.open_session('a' * 32)}"
        access.end_session(Headers({"host": "a", "cookie": cookie}))
        now[0] += SESSION
    assert len(vars(access)["_ended"]) == 1


def test_session_ends_with_its_time_and_its_token() -> None:
    """Fails if the time is not looked at, is not signed, or a session outlives its token."""
    from starlette.datastructures import Headers

    now = [1000.0]
    identity = Identity("default", ALL_SCOPES, "ann")
    token, other = "a" * 32, "b" * 32
    access = Access([(token, identity)], clock=lambda: now[0])
    session = access.open_session(token)

    def headers(text: str) -> Headers:
        return Headers({"host": "localhost:81", "cookie": f"milecastle-81={text}"})

    assert access.identify(headers(session)) == identity
    assert credential(headers(session)).text == session
    late = session.replace(session.partition(".")[0], "9" * 12, 1)
    changed = Access([(other, identity)], clock=lambda: now[0])
    cases = [(access, late), (changed, session), (access, session + "0"), (access, "")]
    for known, text in [*cases, (access, "a.b.c"), (access, "ü.ü.ü")]:
        with pytest.raises(Refused):
            known.identify(headers(text))
    now[0] += SESSION
    with pytest.raises(Refused):
        access.identify(headers(session))


def test_static_files_are_cached_by_their_content(browser: Browser) -> None:
    """Fails if a URL has no hash, a type is wrong, or a path leads outside."""
    files = static_files()
    kinds = {"milecastle.css": "text/css; charset=utf-8", "milecastle.svg": "image/svg+xml"}
    for url, file in files.items():
        answer = browser.ask("GET", url)
        assert answer.content == file.content
        assert "immutable" in answer.headers["cache-control"]
        wanted = kinds.get(file.name, "text/javascript; charset=utf-8")
        assert file.name.endswith(".txt") or answer.headers["content-type"] == wanted
    for path in (
        "milecastle.css",
        "..%2Ftemplates%2Flayout.html",
        "%2E%2E%2F__init__.py",
        "0000000000000000-milecastle.css",
        "%2Fetc%2Fpasswd",
    ):
        assert browser.ask("GET", f"/static/{path}").status_code == 404
    assert browser.ask("GET", "/static/vendor/htmx.js").status_code == 404


def test_our_own_files_are_small() -> None:
    """Also all of it together: what the web view adds to an installation."""
    sizes = {file.name: len(file.content) for file in static_files().values()}
    assert sizes["milecastle.css"] < 56_000
    assert sizes["milecastle.js"] + sizes["inbox.js"] < 16_000
    assert sum(sizes.values()) < 150_000 < LARGEST


def test_badge_is_shown_beside_its_link(api: Api) -> None:
    """The number of open questions. Fails if another tenant's are counted."""
    api.run("a", 42)
    api.run("b", 42)
    shown = Browser(api).log_in(token_of("default")).page("/threads")
    assert "Inbox2 open questions" in shown.texts("a")
    other = Browser(api).log_in(token_of(OTHER)).page("/threads")
    assert "Inbox" in other.texts("a")


def test_colours_are_chosen_and_lead_back_to_the_page(browser: Browser) -> None:
    """Fails if the choice is not stored, a page ignores it, or it leads to another site."""
    assert browser.page("/threads").one("html").get("data-theme") == ""
    for colours in ("dark", "light", ""):
        data = {"csrf": browser.csrf, "colours": colours, "next": "/threads?q=a"}
        answer = browser.ask("POST", "/colours", data=data)
        assert (answer.status_code, answer.headers["location"]) == (303, "/threads?q=a")
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert browser.page("/threads").one("html").get("data-theme") == colours
    browser.cookies["milecastle-colours"] = '"><script>'
    assert browser.page("/threads").one("html").get("data-theme") == ""
    data = {"csrf": browser.csrf, "colours": "dark", "next": "//evil.example"}
    assert browser.ask("POST", "/colours", data=data).headers["location"] == "/"
    assert browser.ask("POST", "/colours", data={**data, "colours": "pink"}).status_code == 400


def test_command_can_be_typed_into_a_shell() -> None:
    """Fails if a name is not quoted, or if a terminal would interpret it."""
    import shlex
    import subprocess

    assert command_line(["show", "a b"]) == "milecastle show 'a b'"
    for name in ("it's", "x\ny", "\x1b[31m'\\", "\u202eabc", "$(id)", "-x"):
        typed = command_line(["show", name])
        assert typed.isprintable()
        script = f'milecastle() {{ printf %s "$2"; }}; {typed}'
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env=env)
        assert done.stdout.decode() == name
    assert shlex.split(command_line(["a"])) == ["milecastle", "a"]


def test_filters_escape_text_of_several_lines() -> None:
    """Fails if a filter returns what is not escaped."""
    found = Renderer(PAGES).environment.from_string("{{ a | multiline }} {{ b | json }} {{ a }}")
    shown = found.render(a="<b>\n\x1b[1m", b={"<i>": "\x1b"})
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "\x1b" not in shown
    assert shown.startswith("&lt;b&gt;\n\\x1b[1m {\n")
