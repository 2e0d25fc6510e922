"""A real server on SQLite, which runs what is submitted in its own process."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import LIMIT, Process, Server, serving
from tests.postgres_cluster import wait_until

TOKENS = """
[[token]]
token = "{0}"
tenant = "acme"
scopes = ["read", "run", "answer", "admin"]

[[token]]
token = "{1}"
tenant = "other"
scopes = ["read"]
"""


def test_run_is_submitted_waited_for_and_shown(server: Server) -> None:
    """Fails if the server does not run what is submitted."""
    response = server.client.post("/v1/threads/a/runs?wait=60", json=journey(3))
    assert response.status_code == 200, response.text
    assert response.json()["state"]["done"] == 3
    again = server.client.post("/v1/threads/a/runs?wait=60", json=journey(3))
    assert again.json()["run_id"] == response.json()["run_id"]
    assert server.client.get("/v1/threads/a").json()["status"] == "completed"


def test_result_that_is_not_there_in_time_is_not_waited_for(server: Server) -> None:
    """Fails if ``wait`` waits for the end of the run."""
    body = journey(1, pause=3600.0)
    response = server.client.post("/v1/threads/slow/runs?wait=0.1", json=body)
    assert response.status_code == 202
    server.rests("slow", "running")
    refused = server.client.delete("/v1/threads/slow")
    assert (refused.status_code, refused.json()["code"]) == (409, "MC405")
    assert server.client.post("/v1/threads/slow/cancel").json()["cancelled"] is True
    server.rests("slow", "cancelled")
    assert server.client.delete("/v1/threads/slow?take_over=true").status_code == 200


def test_question_is_answered(server: Server) -> None:
    server.client.post("/v1/threads/b/runs?wait=60", json=journey(1, then="ask"))
    (asking,) = server.client.get("/v1/questions").json()["threads"]
    (question,) = asking["questions"]
    answer = {"answers": {question["id"]: True}}
    found = server.client.post("/v1/threads/b/answers?wait=60", json=answer)
    assert (found.status_code, found.json()["status"]) == (200, "completed")
    assert server.client.get("/v1/questions").json()["threads"] == []


def test_run_that_fails_is_shown_with_its_failure_and_can_be_retried(server: Server) -> None:
    """Fails if the failure of a run that was waited for is left out."""
    failed = server.client.post("/v1/threads/c/runs?wait=60", json=journey(1, then="fail"))
    assert (failed.status_code, failed.json()["status"]) == (200, "failed")
    assert failed.json()["failure"]["node"]
    again = server.client.post("/v1/threads/c/retry?wait=60", json={})
    assert (again.status_code, again.json()["status"]) == (200, "failed")
    server.client.post("/v1/threads/d/runs?wait=60", json=journey(1, then="ask"))
    (question,) = server.client.get("/v1/threads/d").json()["questions"]
    no = {"answers": {question["id"]: False}}
    refused = server.client.post("/v1/threads/d/answers?wait=60", json=no)
    assert (refused.status_code, refused.json()["status"]) == (200, "failed")
    assert server.client.post("/v1/threads/d/fork", json={"at": 1}).status_code == 200
    resumed = server.client.post("/v1/threads/d/retry?wait=60", json={})
    assert (resumed.status_code, resumed.json()["status"]) == (200, "interrupted")


def test_many_runs_are_cancelled_by_a_job(server: Server) -> None:
    """More than a page of them. Fails if a job stops after its first page."""
    for number in range(130):
        body = {**journey(1), "delay": 3600}
        server.client.post(f"/v1/threads/many{number:03}/runs", json=body)
    job = server.client.post("/v1/runs/cancel", json={"status": "queued"}).json()
    assert job["found"] == 130

    def has_ended() -> bool:
        shown = server.client.get(f"/v1/jobs/{job['job']}").json()
        return bool(shown["status"] == "completed")

    wait_until(has_ended, LIMIT)
    done = server.client.get(f"/v1/jobs/{job['job']}").json()
    assert (done["changed"], done["skipped"]) == (130, 0)


def test_start_url_is_for_browsers(server: Server) -> None:
    """Fails if the cookie is not enough, or is refused."""
    with httpx.Client(follow_redirects=True, timeout=LIMIT) as browser:
        assert browser.get(f"{server.client.base_url}v1/threads").status_code == 401
        assert browser.get(server.url).status_code == 200
        assert browser.get(f"{server.client.base_url}v1/threads").status_code == 200
        foreign = {"Origin": "http://localhost:1"}
        place = f"{server.client.base_url}v1/threads/x/cancel"
        assert browser.post(place, headers=foreign).status_code == 403


def test_request_under_another_name_is_refused(server: Server) -> None:
    response = server.client.get("/v1/threads", headers={"Host": "evil.example"})
    assert (response.status_code, response.json()["code"]) == (403, "MC603")


def test_large_requests_are_refused_and_the_server_goes_on(server: Server) -> None:
    """Complete and incomplete ones. Fails if a head of any size is read."""
    large = server.client.get("/v1/threads", headers={"x": "v" * 10_240})
    assert (large.status_code, large.json()["code"]) == (431, "MC605")
    with socket.create_connection((server.client.base_url.host, _port(server)), LIMIT) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        answer = b""
        try:
            for _ in range(1000):
                raw.sendall(b"x-%d: " % _ + b"v" * 1000 + b"\r\n")
            answer = raw.recv(100)
        except ConnectionError:
            answer = answer or b"HTTP/1.1 400"
    assert answer.startswith(b"HTTP/1.1 4")
    body = {"input": {"steps": 1, "done": 0, "log": ["x" * 2_000_000]}}
    too_large = server.client.post("/v1/threads/e/runs", json=body)
    assert too_large.status_code == 413
    assert server.client.get("/healthz").status_code == 200


def _port(server: Server) -> int:
    port = server.client.base_url.port
    assert port is not None
    return port


def test_token_is_not_logged_after_the_start(server: Server) -> None:
    """Fails with the access log of uvicorn, which has the query."""
    httpx.get(server.url)
    token = re.search(r"token=(\S+)", server.url)
    assert token
    assert server.process.log.count(token[1]) == 1


def test_other_machines_need_tokens(tmp_path: Path) -> None:
    """Fails if the server opens itself to the network without tokens."""
    process = Process(
        "serve",
        "tests.acceptance.server.graphs:graph",
        "--store",
        f"sqlite:///{tmp_path / 'runs.db'}",
        "--host",
        "0.0.0.0",
    )
    try:
        process.said("that needs --tokens")
    finally:
        process.kill()


def test_tokens_have_their_tenants(tmp_path: Path) -> None:
    own, other = "a" * 40, "b" * 40
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS.format(own, other), encoding="utf-8")
    file.chmod(0o600)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(store, "--host", "0.0.0.0", "--tokens", str(file)) as server:
        assert "token=" not in server.process.log
        client = server.client
        assert client.get("/v1/threads").status_code == 401
        client.headers["Authorization"] = f"Bearer {own}"
        done = client.post("/v1/threads/t/runs?wait=60", json=journey(1))
        assert done.json()["tenant"] == "acme"
        client.headers["Authorization"] = f"Bearer {other}"
        assert client.get("/v1/threads").json() == {
            "tenant": "other",
            "threads": [],
            "next": None,
        }
        assert client.get("/v1/threads/t").status_code == 404
        assert client.post("/v1/threads/t/runs", json=journey(1)).status_code == 403


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_other_stores_are_served(tmp_path: Path, kind: str) -> None:
    """Files can be read, and say why they cannot run anything; memory runs what is submitted."""
    store = f"file://{tmp_path / 'store'}" if kind == "file" else "memory://"
    with serving(store) as server:
        response = server.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
        assert response.status_code == (400 if kind == "file" else 200)
        assert server.client.get("/v1/threads").status_code == 200
