"""What each endpoint does, beyond its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from starlette.datastructures import Headers

from milecastle import (
    END,
    START,
    CheckpointStore,
    Conflict,
    InvalidRequest,
    Keyring,
    RunInProgress,
    StateGraph,
    ThreadKey,
    ThreadNotFound,
)
from milecastle.app.runs.ownership import current_owner
from milecastle.fleet.bulk import job_key
from milecastle.fleet.worker import Worker
from milecastle.ports.store import Batch
from milecastle.server import problem_for
from milecastle.server.identity import Identity
from milecastle.server.limits import refuse_two_lengths
from milecastle.server.problems import UNAUTHORIZED, Refused
from milecastle.server.routes import ENDPOINTS
from milecastle.stores.memory import MemoryStore
from milecastle.views.values import anything
from tests.unit.server.calling import OTHER, Api, Trip, ask, build, token_of, trip


def test_submission_names_the_checkpoint_from_which_it_is_followed(api: Api) -> None:
    """Fails if ``seq`` is missing, also for a run that was found."""
    first = api.ask("POST", "/v1/threads/t/runs", json=trip()).json()
    assert (first["status"], first["reused"], first["seq"]) == ("queued", False, 1)
    again = api.ask("POST", "/v1/threads/t/runs", json=trip()).json()
    assert (again["run_id"], again["reused"], again["seq"]) == (first["run_id"], True, 1)


def test_idempotency_key_is_the_key(api: Api) -> None:
    """Fails if the header is not looked at: the other input would be refused."""
    sent = {"Idempotency-Key": '"order-1"'}
    first = api.ask("POST", "/v1/threads/t/runs", json=trip(1), headers=sent).json()
    again = api.ask("POST", "/v1/threads/t/runs", json=trip(2), headers=sent).json()
    assert (again["run_id"], again["reused"]) == (first["run_id"], True)
    same = api.ask("POST", "/v1/threads/t/runs", json={**trip(3), "key": "order-1"}).json()
    assert same["run_id"] == first["run_id"]
    both = api.ask("POST", "/v1/threads/t/runs", json={**trip(3), "key": "order-2"}, headers=sent)
    assert both.status_code == 400


def test_repeated_request_finds_its_run_unless_that_failed(api: Api) -> None:
    """As the page about the server says: by its key any run, by its input the newest one.

    Fails if the digests of runs are not compared.
    """

    def post(thread: str, n: int, key: str = "", **options: Any) -> tuple[str, bool]:
        sent, body = {"Idempotency-Key": key} if key else {}, {**trip(n), "options": options}
        found = api.ask("POST", f"/v1/threads/{thread}/runs", json=body, headers=sent).json()
        api.work()
        return found["run_id"], found["reused"]

    first = post("t", 1, "a")
    assert post("t", 1, "a") == (first[0], True)
    newest = post("t", 2, "b")
    assert post("t", 1, "a", if_busy="queue") == (first[0], True)
    assert post("t", 1, "a") == (first[0], True)
    assert post("t", 2, "b") == (newest[0], True)
    unnamed = post("t", 3)
    assert post("t", 3) == (unnamed[0], True)
    post("t", 4)
    again = post("t", 3)
    assert (again[1], again[0] != unnamed[0]) == (False, True)
    failed = post("u", 13, "a")
    again = post("u", 13, "a")
    assert (again[1], again[0] != failed[0]) == (False, True)


def test_options_of_a_submission(api: Api) -> None:
    """Fails if priority, delay or an option is not passed on."""
    body = {**trip(), "priority": 7, "delay": 3600}
    api.ask("POST", "/v1/threads/t/runs", json=body)
    info = api.app.store.thread(api.app.state("t").key)
    assert info is not None
    assert info.priority == 7
    assert info.due_at is not None
    assert info.due_at > info.started_at + 3_000_000_000
    assert api.ask("POST", "/v1/threads/t/runs", json=trip(2)).status_code == 409
    waits = {**trip(2), "options": {"if_busy": "queue"}}
    assert api.ask("POST", "/v1/threads/t/runs", json=waits).status_code == 202
    absent = {**trip(3), "options": {"if_absent": True}}
    assert api.ask("POST", "/v1/threads/t/runs", json=absent).json()["reused"] is True
    assert (
        api.ask("POST", "/v1/threads/u/runs", json={**trip(), "priority": 101}).status_code == 400
    )


def test_limits_of_a_run_are_refused_with_what_to_do(api: Api) -> None:
    """A submitted run does not carry them. Fails if they are accepted and then ignored."""
    for option in ("max_steps", "timeout", "max_parallel"):
        body = {**trip(), "options": {option: 5}}
        response = api.ask("POST", "/v1/threads/t/runs", json=body)
        assert (response.status_code, response.json()["code"]) == (400, "MC606")
        assert "with_default_config()" in response.json()["detail"]


def test_input_is_checked_without_its_values(api: Api) -> None:
    """Fails if a value is in the problem."""
    for given in ({"n": "sekrit"}, {"n": 1, "log": ["sekrit", 2], "more": "sekrit"}):
        response = api.ask("POST", "/v1/threads/t/runs", json={"input": given})
        assert response.status_code == 400, response.text
        assert "sekrit" not in response.text


@pytest.mark.parametrize("name", ["a/b", "a b", "ä", "%2F", "..", "a?b#c", "x\ny", "'\"<script>"])
def test_names_are_whatever_they_are(api: Api, name: str) -> None:
    """Fails if the path is decoded before it is matched."""
    from urllib.parse import quote

    path = f"/v1/threads/{quote(name, safe='')}".replace("..", "%2E%2E")
    assert api.ask("POST", f"{path}/runs", json=trip()).json()["thread"] == name
    assert api.ask("GET", path).json()["thread"] == name
    (line,) = api.ask("GET", "/v1/threads").json()["threads"]
    assert line["thread"] == name


@pytest.mark.parametrize("name", ["a%1Fb", "%00", "%FF", "x" * 600])
def test_names_that_no_thread_has_are_refused(api: Api, name: str) -> None:
    assert api.ask("GET", f"/v1/threads/{name}").status_code == 400


def test_list_is_filtered_and_paged(api: Api) -> None:
    """Fails if a filter or ``after`` is not passed on."""
    api.run("a", 42)
    api.run("b", 1)
    api.run("c", 42)

    def names(query: str) -> list[str]:
        found = api.ask("GET", f"/v1/threads?{query}").json()["threads"]
        return [line["thread"] for line in found]

    assert names("") == ["a", "b", "c"]
    assert names("status=interrupted") == ["a", "c"]
    assert names("status=interrupted&limit=1") == ["a"]
    assert names("after=a&limit=1") == ["b"]
    assert names("graph=trip&limit=2") == ["a", "b"]
    assert names("graph=other") == []
    assert api.ask("GET", "/v1/threads?limit=0").status_code == 400
    assert api.ask("GET", "/v1/threads?limit=1001").status_code == 400


def test_thread_is_shown_at_any_checkpoint(api: Api) -> None:
    api.run("t")
    head = api.ask("GET", "/v1/threads/t").json()
    assert (head["status"], head["state"]) == ("completed", {"n": 2, "log": ["begin"]})
    first = api.ask("GET", "/v1/threads/t?at=1").json()
    assert first["state"] == {"n": 1, "log": []}
    by_id = api.ask("GET", f"/v1/threads/t?at={first['checkpoint']['id']}").json()
    assert by_id["checkpoint"] == first["checkpoint"]
    for at in ("0", "99", "-1", "x"):
        assert api.ask("GET", f"/v1/threads/t?at={at}").status_code == 404


def test_history_and_diff(api: Api) -> None:
    api.run("t")
    seqs = [one["seq"] for one in api.ask("GET", "/v1/threads/t/history").json()["checkpoints"]]
    assert seqs == list(range(len(seqs), 0, -1))
    page = api.ask("GET", f"/v1/threads/t/history?before={seqs[0]}&limit=1").json()
    assert [one["seq"] for one in page["checkpoints"]] == [seqs[1]]
    diff = api.ask("GET", "/v1/threads/t/diff?a=1").json()
    assert (diff["a"], diff["b"]) == ("t@1", f"t@{seqs[0]}")
    assert {"path": "$.n", "kind": "changed", "old": 1, "new": 2} in diff["changes"]


def test_inbox_has_each_question_with_the_schema_of_its_answer(api: Api) -> None:
    """Fails if threads that ask nothing are listed, or a page has no ``next``."""
    api.run("a", 42)
    api.run("b", 1)
    api.run("c", 42)
    page = api.ask("GET", "/v1/questions?limit=1").json()
    assert page["next"] == "a"
    (line,) = page["threads"]
    assert (line["thread"], line["graph"], line["count"]) == ("a", "trip", 1)
    (question,) = line["questions"]
    assert (question["question"], question["answer"]) == ("sure?", {"type": "boolean"})
    rest = api.ask("GET", "/v1/questions?after=a").json()
    assert [one["thread"] for one in rest["threads"]] == ["c"]
    assert rest["next"] is None


def test_answer_resumes_the_run(api: Api) -> None:
    api.run("t", 42)
    (asked,) = api.app.state("t").interrupts
    body = {"answers": {asked.id: True}}
    found = api.ask("POST", "/v1/threads/t/answers", json=body).json()
    assert found["status"] == "queued"
    api.work()
    assert api.ask("GET", "/v1/threads/t").json()["state"]["sure"] is True
    assert api.ask("POST", "/v1/threads/t/answers", json={"answers": {}}).status_code == 400


def test_fork_update_cancel_and_delete(api: Api) -> None:
    api.run("t", 42)
    fork = api.ask("POST", "/v1/threads/t/fork", json={"at": 1, "as_thread": "u"}).json()
    assert fork["thread"] == "u"
    update = api.ask("POST", "/v1/threads/t/update", json={"update": {"n": 5}}).json()
    assert update["checkpoint"]["source"] == "update"
    assert api.app.state("t").state["n"] == 5
    older = api.ask("POST", "/v1/threads/t/update", json={"update": {"n": 6}, "at": 1})
    assert older.status_code == 200
    bad = api.ask("POST", "/v1/threads/t/update", json={"update": {"n": "sekrit"}})
    assert bad.status_code == 400
    assert "sekrit" not in bad.text
    assert api.ask("POST", "/v1/threads/u/cancel").json()["cancelled"] is True
    assert api.ask("POST", "/v1/threads/u/cancel").json()["cancelled"] is False
    assert api.ask("DELETE", "/v1/threads/u").json()["deleted"] is True
    assert api.ask("GET", "/v1/threads/u").status_code == 404


def test_runs_are_listed(api: Api) -> None:
    """Fails if the failure is left out, or the status is not a filter."""
    api.run("a", 13)
    api.run("b", 1)
    api.run("c", 13)
    (run,) = api.ask("GET", "/v1/threads/a/runs").json()["runs"]
    assert run["failure"]["error_type"].endswith("RuntimeError")
    assert [one["thread"] for one in api.ask("GET", "/v1/runs").json()["runs"]] == ["c", "b", "a"]
    page = api.ask("GET", "/v1/runs?limit=2").json()
    rest = api.ask("GET", "/v1/runs", params={"after": page["next"]}).json()
    assert [one["thread"] for one in rest["runs"]] == ["a"]
    failed = api.ask("GET", "/v1/runs?status=failed&limit=1").json()
    assert [one["thread"] for one in failed["runs"]] == ["a"]
    assert failed["next"] == "a"
    others = api.ask("GET", "/v1/runs?status=failed&after=a&graph=trip").json()
    assert [one["thread"] for one in others["runs"]] == ["c"]
    assert others["next"] is None


def test_bulk_work_is_done_by_workers(api: Api) -> None:
    """Fails if the request itself changes the runs, or the job does not count them."""
    for number in range(3):
        api.ask("POST", f"/v1/threads/t{number}/runs", json={**trip(), "delay": 3600})
    body = {"status": "queued", "graph": "trip", "limit": 2}
    job = api.ask("POST", "/v1/runs/cancel", json=body).json()
    assert (job["found"], job["changed"], job["status"]) == (2, 0, "queued")
    assert len(api.ask("GET", "/v1/runs?status=queued&graph=trip").json()["runs"]) == 3
    api.work()
    done = api.ask("GET", f"/v1/jobs/{job['job']}").json()
    assert (done["changed"], done["skipped"], done["status"]) == (2, 0, "completed")
    cancelled = api.ask("GET", "/v1/runs?status=cancelled").json()["runs"]
    assert [one["thread"] for one in cancelled] == ["t0", "t1"]
    again = api.ask("POST", "/v1/runs/retry", json={"status": "cancelled"}).json()
    api.work()
    assert api.ask("GET", f"/v1/jobs/{again['job']}").json()["changed"] == 2
    assert api.ask("GET", "/v1/runs?status=cancelled").json()["runs"] == []


@pytest.mark.parametrize("limit", [0, 1_000_000_001, 2**63, 10**30])
def test_limit_of_bulk_work_is_bounded(api: Api, limit: int) -> None:
    """Failed before there was an upper bound: 2**63 was answered with 500."""
    response = api.ask("POST", "/v1/runs/retry", json={"status": "failed", "limit": limit})
    assert (response.status_code, response.json()["code"]) == (400, "MC606")


def test_thread_that_has_the_name_of_a_job_is_not_one(api: Api) -> None:
    """Failed before the graph of the thread was looked at: it was answered with 500."""
    CheckpointStore(api.app.store).__put__(job_key("default", "x"), {"n": 1})
    response = api.ask("GET", "/v1/jobs/x")
    assert (response.status_code, response.json()["code"]) == (404, "MC604")


@pytest.mark.parametrize(("action", "status"), [("retry", "queued"), ("cancel", "failed")])
def test_bulk_work_that_makes_no_sense_is_refused(api: Api, action: str, status: str) -> None:
    response = api.ask("POST", f"/v1/runs/{action}", json={"status": status})
    assert response.status_code == 400
    other = api.ask("POST", "/v1/runs/retry", json={"status": "failed", "graph": "other"})
    assert other.status_code == 400


def test_graph_has_its_manifest_drawing_and_schema(api: Api) -> None:
    found = api.ask("GET", "/v1/graphs/trip").json()
    assert found["drawing"].startswith("<svg")
    assert "begin" in str(found["manifest"])
    assert found["input"]["properties"]["n"] == {"type": "integer"}
    assert found["input"]["properties"]["log"] == {"type": "array", "items": {"type": "string"}}
    (line,) = api.ask("GET", "/v1/graphs").json()["graphs"]
    assert (line["graph"], line["nodes"]) == ("trip", ["begin", "ask"])


def references(found: Any) -> set[str]:
    """Every ``$ref`` in a document."""
    parts: list[Any] = []
    if isinstance(found, dict):
        parts = list(anything(found).values())
    elif isinstance(found, list):
        parts = list(anything(found))
    own = {anything(found)["$ref"]} if isinstance(found, dict) and "$ref" in found else set[str]()
    return own.union(*map(references, parts))


def test_openapi_document_describes_every_route(api: Api) -> None:
    """Fails if a route, a status or a type is left out."""
    found = api.ask("GET", "/v1/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    for endpoint in ENDPOINTS:
        operation = found["paths"][endpoint.path][endpoint.method.lower()]
        wanted = {*endpoint.answers, *endpoint.all_problems}
        assert set(operation["responses"]) == {*map(str, wanted), "default"}
        assert ("security" in operation) == (endpoint.scope is not None)
        names = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert names == {part[1:-1] for part in endpoint.path.split("/") if part[:1] == "{"}
    schemas = found["components"]["schemas"]
    assert {"ShowDocument", "RunRequest", "ProblemDocument", "StateEvent"} <= set(schemas)
    places = {f"#/components/schemas/{name}" for name in schemas}
    assert references(found) <= places
    ids = [one["operationId"] for path in found["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids)


def test_encrypted_thread_shows_metadata_only_without_its_key(tmp_path: Path) -> None:
    """Fails if the thread cannot be listed, or anything of its state is shown."""
    keyring = Keyring({"k": b"k" * 32}, store=MemoryStore())
    writer = Api(tmp_path, encryption=keyring)
    writer.run("t", 42)
    assert writer.ask("GET", "/v1/threads/t").json()["state"]["n"] == 43
    writer.close()
    api = Api(tmp_path)
    found = api.ask("GET", "/v1/threads/t").json()
    assert (found["state"], found["status"], found["questions"]) == (None, "interrupted", [])
    assert "encrypted" in found["undecoded"]["$"]
    (line,) = api.ask("GET", "/v1/questions").json()["threads"]
    assert (line["count"], line["questions"]) == (1, [])
    for path in ("diff?a=1", "events"):
        response = api.ask("GET", f"/v1/threads/t/{path}")
        assert (response.status_code, response.json()["code"]) == (409, "MC504")
    api.close()


def test_server_of_several_graphs_asks_which_one(api: Api) -> None:
    """Fails if the first graph is taken for a new thread, or another than the thread's own."""
    api.run("old")
    other = build("other").compile(store=api.app.store)
    api.serve(api.app, other)
    assert api.ask("POST", "/v1/threads/new/runs", json=trip()).status_code == 400
    named = api.ask("POST", "/v1/threads/new/runs", json={**trip(), "graph": "other"})
    assert named.status_code == 202
    assert api.ask("POST", "/v1/threads/old/runs", json=trip()).json()["reused"] is True
    lines = api.ask("GET", "/v1/threads").json()["threads"]
    assert [(one["thread"], one["graph"]) for one in lines] == [("new", "other"), ("old", "trip")]
    assert api.ask("POST", "/v1/runs/retry", json={"status": "failed"}).status_code == 400
    unknown = api.ask("POST", "/v1/threads/x/runs", json={**trip(), "graph": "none"})
    assert unknown.status_code == 400


def test_thread_of_a_graph_that_is_not_served_can_be_read(api: Api) -> None:
    """Fails if reading needs the code, and if a write uses the code of another graph."""
    api.run("t", 42)
    api.serve(build("other").compile(store=api.app.store))
    assert api.ask("GET", "/v1/threads/t").json()["state"]["n"] == 43
    assert api.ask("POST", "/v1/threads/t/retry", json={}).status_code == 400
    assert api.ask("POST", "/v1/threads/t/cancel").status_code == 400


def test_apps_with_equal_urls_share_a_store(api: Api, tmp_path: Path) -> None:
    """``asgi(a, b)`` was refused, because each had opened the URL by itself."""
    one, two = (
        build(name).compile(store=f"sqlite:///{tmp_path / 'shared.db'}") for name in ("one", "two")
    )
    api.serve(one, two)
    for graph in ("one", "two"):
        body = {"graph": graph, "input": {"n": 1}}
        assert api.ask("POST", f"/v1/threads/{graph}/runs", json=body).status_code == 202
    assert [info.key.thread for info in one.threads()] == ["one", "two"]
    one.close()
    two.close()


def test_apps_of_a_server_share_a_store_and_have_different_names(api: Api, tmp_path: Path) -> None:
    elsewhere = build("other").compile(store=f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(InvalidRequest, match="share one store"):
        api.serve(api.app, elsewhere)
    with pytest.raises(InvalidRequest, match="same name"):
        api.serve(api.app, build().compile(store=api.app.store))
    with pytest.raises(InvalidRequest, match="at least one"):
        api.serve()
    elsewhere.close()


def test_server_that_stops_is_not_ready(api: Api) -> None:
    """Fails if only the store is asked: a balancer would send requests until the end."""
    assert api.ask("GET", "/readyz", token=None).text == "ok\n"
    api.application.service.closing.set()
    stopping = api.ask("GET", "/readyz", token=None)
    assert (stopping.status_code, stopping.text) == (503, "it is stopping\n")


def test_server_whose_worker_has_ended_is_not_ready(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed: a worker that could not begin left the server ready, with runs that nobody ran."""
    worker = api.application.service.worker = Worker([api.app])

    def refuse(*, insists: bool = False) -> None:
        raise InvalidRequest("a schedule that cannot be registered")

    monkeypatch.setattr(vars(worker)["_schedules"], "register", refuse)
    assert api.ask("GET", "/readyz", token=None).status_code == 200
    with pytest.raises(InvalidRequest):
        asyncio.run(worker.run())
    ended = api.ask("GET", "/readyz", token=None)
    assert (ended.status_code, "has ended" in ended.text) == (503, True)


def test_server_with_a_worker_says_how_busy_it_is(api: Api) -> None:
    """Fails if the number of threads that it runs is missing."""
    assert "milecastle_running" not in api.ask("GET", "/metrics").text
    api.application.service.worker = Worker([api.app])
    assert "milecastle_running 0" in api.ask("GET", "/metrics").text


def test_server_of_files_is_ready_and_has_no_queue(api: Api, tmp_path: Path) -> None:
    """Fails if it asks for the time of a store that has no workers."""
    files = build().compile(store=f"file://{tmp_path / 'files'}")
    api.serve(files)
    assert api.ask("GET", "/readyz", token=None).text == "ok\n"
    assert "default" not in api.ask("GET", "/metrics").text
    files.close()


def test_threads_are_tagged_and_listed_by_tag(api: Api) -> None:
    """Fails if a request drops its tags, or a filter beside the tag is not applied."""
    for thread, n in (("a", 42), ("b", 1), ("c", 1)):
        body = {**trip(n), "tags": ["eu", "\u00e9 <b>"]} if thread != "c" else trip(n)
        assert api.ask("POST", f"/v1/threads/{thread}/runs", json=body).status_code == 202
    api.work()

    def listed(query: str) -> list[str]:
        return [one["thread"] for one in api.ask("GET", f"/v1/threads?{query}").json()["threads"]]

    assert listed("tag=eu") == ["a", "b"]
    assert listed("tag=eu&status=interrupted") == ["a"]
    assert listed("tag=eu&status=lost") == []
    assert listed("tag=eu&graph=trip&after=a") == ["b"]
    assert listed("tag=eu&graph=none") == []
    assert listed("tag=eu&prefix=b&limit=1") == ["b"]
    assert listed("tag=eu&prefix=c") == []
    assert listed("tag=us") == []
    assert api.ask("GET", "/v1/threads?tag=eu", token=token_of(OTHER)).json()["threads"] == []
    lines = api.ask("GET", "/v1/threads").json()["threads"]
    assert [one["tags"] for one in lines] == [["eu", "\u00e9 <b>"]] * 2 + [[]]
    changed = api.ask("POST", "/v1/threads/a/tags", json={"add": ["paid"], "remove": ["eu"]})
    assert changed.json() == {"tenant": "default", "thread": "a", "tags": ["paid", "\u00e9 <b>"]}
    assert api.ask("GET", "/v1/threads/a").json()["tags"] == ["paid", "\u00e9 <b>"]
    assert listed("tag=paid") == ["a"]


@pytest.mark.parametrize(
    "body",
    [
        {"add": [""]},
        {"add": ["x" * 129]},
        {"add": ["\u00e9" * 65]},
        {"add": ["a\0b"]},
        {"add": [str(n) for n in range(33)]},
        {"add": ["a"], "remove": ["a"]},
        {"tags": ["a"]},
    ],
)
def test_what_is_not_a_tag_is_refused(api: Api, body: dict[str, Any]) -> None:
    api.run("a")
    assert api.ask("POST", "/v1/threads/a/tags", json=body).status_code == 400
    assert api.ask("GET", "/v1/threads/a").json()["tags"] == []


def test_change_of_tags_that_never_meets_the_head_is_a_conflict(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.run("a")

    def commit(batch: Batch) -> None:
        raise Conflict(tenant="default", thread="a", expected=3, head=3)

    monkeypatch.setattr(api.app.store, "commit", commit)
    response = api.ask("POST", "/v1/threads/a/tags", json={"add": ["eu"]})
    assert (response.status_code, response.json()["code"]) == (409, "MC401")


def test_revoked_token_gets_no_result(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed: what a caller had waited for was delivered after its token was taken out."""
    access = api.application.access
    identify, calls = access.identify, count()

    def revoked(headers: Headers) -> Identity:
        if next(calls):
            raise Refused(UNAUTHORIZED, 401, "it was taken out")
        return identify(headers)

    monkeypatch.setattr(access, "identify", revoked)
    response = api.ask("POST", "/v1/threads/t/runs?wait=0.01", json=trip())
    assert response.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Length", "2"), ("Transfer-Encoding", "chunked")],
        [("Content-Length", "2"), ("Content-Length", "2")],
    ],
)
def test_body_with_two_lengths_is_refused(api: Api, headers: list[tuple[str, str]]) -> None:
    """Failed: a proxy that believes the other length reads another request than we do."""
    scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b""}
    sent = [(name.lower().encode(), text.encode()) for name, text in headers]
    with pytest.raises(Refused, match="once"):
        refuse_two_lengths({**scope, "headers": sent})


def test_failed_run_is_a_result_for_those_who_wait(api: Api) -> None:
    """Failed: it was answered with 500, as if the server were broken."""
    is_done = Event()

    def work() -> None:
        while not is_done.is_set():
            asyncio.run(Worker([api.app]).run_until_idle())

    worker = Thread(target=work)
    worker.start()
    try:
        found = api.ask("POST", "/v1/threads/u/runs?wait=60", json=trip(13))
    finally:
        is_done.set()
        worker.join()
    assert found.status_code == 200
    document = found.json()
    assert (document["status"], document["failure"]["error_type"]) == ("failed", "RuntimeError")
    assert document["state"]["n"] == 13
    queued = api.ask("POST", "/v1/threads/v/runs", json=trip()).json()
    assert queued.keys() <= {"tenant", "thread", "run_id", "status", "reused", "seq"}


def test_pages_of_threads_say_where_the_next_one_begins(api: Api) -> None:
    """Failed: a reader could not know whether there are more."""
    for name in "abc":
        api.ask("POST", f"/v1/threads/{name}/runs", json=trip())
    first = api.ask("GET", "/v1/threads?limit=2").json()
    assert [line["thread"] for line in first["threads"]] == ["a", "b"]
    second = api.ask("GET", f"/v1/threads?limit=2&after={first['next']}").json()
    assert ([line["thread"] for line in second["threads"]], second["next"]) == (["c"], None)


def test_thread_in_progress_does_not_show_its_process() -> None:
    """Failed: the host and the process id were in the answer."""
    error = RunInProgress(
        tenant="default",
        thread="t",
        head=1,
        run_id="r",
        owner=current_owner(),
        since=datetime(2026, 1, 1, tzinfo=UTC),
        who="process 42 on db-7.internal",
    )
    problem = problem_for(error)
    assert problem.status_code == 409
    assert b"internal" not in problem.body
    assert b"42" not in problem.body
    assert b"run r, driven by a live process since 2026-01-01" in problem.body


def test_problem_for_the_errors_of_a_service(api: Api) -> None:
    """Failed for a service written from our page: 409 for an unknown thread."""
    calls: list[Callable[[], object]] = [
        lambda: api.app.state("nope"),
        lambda: api.app.resume("nope"),
        lambda: api.app.answer("nope", True),
        lambda: api.app.retry("nope"),
        lambda: api.app.cancel("nope"),
        lambda: api.app.wait("nope"),
        lambda: api.app.fork("nope", 1),
        lambda: api.app.update_state("nope", {}),
        lambda: api.app.tag("nope", ["x"]),
        lambda: api.app.compatibility("nope"),
    ]
    for call in calls:
        with pytest.raises(ThreadNotFound) as raised:
            call()
        problem = problem_for(raised.value)
        assert (problem.status_code, b"MC306" in problem.body) == (404, True)
        assert (raised.value.tenant, raised.value.thread) == ("default", "nope")
    assert problem_for(RuntimeError("a secret")).status_code == 500
    assert b"secret" not in problem_for(RuntimeError("a secret")).body


def test_thread_of_a_graph_that_is_not_served_is_followed_and_deleted(api: Api) -> None:
    """Failed: threads of sessions, jobs and LangGraph were refused with 400."""
    store = CheckpointStore(api.app.store)
    store.put(ThreadKey("default", "put"), {"n": 1})
    store.put(ThreadKey("default", "put"), {"n": 2})
    job = api.ask("POST", "/v1/runs/retry", json={"status": "failed"}).json()["job"]
    api.work()
    other = build("other").compile(store=api.app.store)
    other.invoke(trip(42)["input"], "other")
    for thread in ("put", job_key("default", job).thread, "other"):
        path = f"/v1/threads/{thread}"
        text = api.follow(f"{path}/events")
        assert "event: state" in text, thread
        assert api.ask("DELETE", path).json()["deleted"] is True
        assert api.ask("GET", path).status_code == 404


def test_a_run_an_answer_and_a_resume_have_configs(api: Api) -> None:
    """Was broken: the field read and not passed on."""

    def note(state: Any, config: Any) -> dict[str, Any]:
        if config["model"] == "broken":
            raise RuntimeError("no ink")
        return {"log": [config["model"]]}

    graph = StateGraph(Trip, config=dict)
    graph.add_node("first", note).add_node("ask", ask).add_node("last", note)
    graph.add_edges(START, "first", "ask", "last", END)
    app = graph.compile(store=api.app.store)
    api.serve(app)
    asked = {**trip(), "config": {"model": "broken"}}
    assert api.ask("POST", "/v1/threads/t/runs", json=asked).status_code == 202
    api.work(app)
    api.ask("POST", "/v1/threads/t/retry", json={"config": {"model": "a"}})
    api.work(app)
    (question,) = api.ask("GET", "/v1/threads/t").json()["questions"]
    answers = {"answers": {question["id"]: True}, "config": {"model": "b"}}
    assert api.ask("POST", "/v1/threads/t/answers", json=answers).status_code == 202
    api.work(app)
    assert api.ask("GET", "/v1/threads/t").json()["state"]["log"] == ["a", "ask", "b"]
    api.serve(api.app)
    undeclared = api.ask("POST", "/v1/threads/v/runs", json=asked)
    assert undeclared.status_code == 400


def test_every_list_says_where_its_next_page_begins(api: Api) -> None:
    """Broken on purpose: ``next`` of each list was left out, and the pages ended after one."""
    for number in range(3):
        api.run("t", 42 if number == 2 else number)
    for number in range(3):
        api.ask("POST", "/v1/threads/t/messages", json={"value": number})
    for path, lines, parameter in (
        ("/v1/threads/t/history", "checkpoints", "before"),
        ("/v1/threads/t/runs", "runs", "after"),
        ("/v1/threads/t/messages", "messages", "after"),
    ):
        everything = api.ask("GET", path).json()
        assert everything["next"] is None
        page = api.ask("GET", f"{path}?limit=2").json()
        found = list(page[lines])
        while page["next"] is not None:
            page = api.ask("GET", f"{path}?limit=2&{parameter}={page['next']}").json()
            found += page[lines]
        assert found == everything[lines]
        assert len(found) > 2
    assert api.ask("GET", "/v1/threads/t/runs?after=none").status_code == 400


def test_result_of_a_thread_is_waited_for(api: Api) -> None:
    api.ask("POST", "/v1/threads/t/runs", json=trip(42))
    waiting = api.ask("GET", "/v1/threads/t/result")
    assert (waiting.status_code, waiting.json()["status"]) == (202, "queued")
    api.work()
    stopped = api.ask("GET", "/v1/threads/t/result?wait=30")
    assert (stopped.status_code, stopped.json()["status"]) == (200, "interrupted")
    assert stopped.json()["run_id"] == waiting.json()["run_id"]


def test_one_answer_needs_no_id_of_its_question(api: Api) -> None:
    """Broken on purpose: both forms were accepted together, and one was ignored."""
    api.run("t", 42)
    for wrong in ({}, {"answer": True, "answers": {"x": True}}):
        response = api.ask("POST", "/v1/threads/t/answers", json=wrong)
        assert (response.status_code, response.json()["code"]) == (400, "MC302")
    api.ask("POST", "/v1/threads/t/answers", json={"answer": True, "key": "k"})
    api.work()
    again = api.ask("POST", "/v1/threads/t/answers", json={"answer": True, "key": "k"})
    assert again.json()["reused"] is True
    assert api.app.state("t").status == "completed"
