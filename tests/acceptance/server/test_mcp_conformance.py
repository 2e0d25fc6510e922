"""The scenarios of the tasks extension, each as a test of our own, over HTTP against our server.

A scenario's name is that in the protocol's conformance suite. Four of its checks do not apply:
tools that need tasks (``required-task-error``), input before a task is created
(``mrtr-synchronous-before-task-creation``), status notifications, which are optional, and
``tasks-get-status-failed``: a run that fails is a tool's error, and so ``completed``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from typing import Any, cast

import httpx
import pytest

from tests.acceptance.server.mcp_server import McpServer, mcp_server
from tests.postgres_cluster import wait_until

TASKS = "io.modelcontextprotocol/tasks"
META = "io.modelcontextprotocol/"
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
HEADER_MISMATCH, MISSING_CAPABILITY = -32020, -32021
TASK_METHODS: dict[str, dict[str, Any]] = {
    "get": {},
    "update": {"inputResponses": {}},
    "cancel": {},
}
ENVELOPE = {"taskId", "status", "createdAt", "ttlMs", "inputRequests", "result", "error"}


class Wire:
    """A client that writes its requests by hand. ``tasks``: it declares the extension."""

    def __init__(self, server: McpServer, *, tasks: bool = True) -> None:
        self._http = httpx.Client(base_url=server.url, headers=server.headers, timeout=40)
        self._tasks = tasks
        self._number = 0
        self.close = self._http.close

    def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        tasks: bool | None = None,
        is_routed: bool = True,
    ) -> dict[str, Any]:
        """The whole answer, with ``result`` or ``error``."""
        params, self._number = dict(params or {}), self._number + 1
        declares = self._tasks if tasks is None else tasks
        capabilities: dict[str, Any] = {"elicitation": {}}
        params["_meta"] = {
            f"{META}protocolVersion": "2026-07-28",
            f"{META}clientInfo": {"name": "wire", "version": "1"},
            f"{META}clientCapabilities": capabilities
            | ({"extensions": {TASKS: {}}} if declares else {}),
        }
        sent = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
        }
        if is_routed and (name := params.get("name") or params.get("taskId")):
            sent["Mcp-Name"] = name
        body = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        answer = self._http.post("/mcp", json=body, headers=sent | dict(headers or {}))
        if answer.headers["content-type"].startswith("text/event-stream"):
            *_, last = (line for line in answer.text.splitlines() if line.startswith("data: "))
            return cast("dict[str, Any]", json.loads(last.removeprefix("data: ")))
        return cast("dict[str, Any]", answer.json())

    def result(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Any:
        answer = self.send(method, params, **more)
        assert "result" in answer, answer
        return answer["result"]

    def code(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> int:
        answer = self.send(method, params, **more)
        assert "error" in answer, answer
        found: int = answer["error"]["code"]
        return found

    def call(self, name: str, arguments: Mapping[str, Any], **more: Any) -> Any:
        return self.result("tools/call", {"name": name, "arguments": arguments, **more})

    def ended(self, tool: str, arguments: Mapping[str, Any], **more: Any) -> Any:
        """The result of a run that ends at once; on a busy machine not with the first call."""
        for _ in range(20):
            found = self.call(tool, arguments, **more)
            if found["resultType"] != "task":
                return found
        raise AssertionError("no call has ended at once")

    def started(self, tool: str, **arguments: Any) -> str:
        found: str = self.call(tool, arguments)["taskId"]
        return found

    def task(self, id: str, *statuses: str) -> Any:
        """The task, when it has one of these statuses."""
        found: list[Any] = []

        def has_come() -> bool:
            found[:] = [self.result("tasks/get", {"taskId": id})]
            return not statuses or found[0]["status"] in statuses

        wait_until(has_come, 20)
        return found[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    with mcp_server(f"sqlite:///{tmp_path_factory.mktemp('mcp')}/runs.db") as found:
        yield found


@pytest.fixture
def wire(server: McpServer) -> Iterator[Wire]:
    with closing(Wire(server)) as found:
        yield found


@pytest.fixture
def plain(server: McpServer) -> Iterator[Wire]:
    with closing(Wire(server, tasks=False)) as found:
        yield found


# ---- capability


def test_tasks_extension_advertised(wire: Wire) -> None:
    found = wire.result("server/discover")["capabilities"]
    assert TASKS in found["extensions"]
    assert "tasks" not in found


def test_tasks_methods_non_declaring(plain: Wire) -> None:
    for method, more in TASK_METHODS.items():
        answer = plain.send(f"tasks/{method}", {"taskId": "some", **more})
        assert answer["error"]["code"] == MISSING_CAPABILITY
        assert TASKS in answer["error"]["data"]["requiredCapabilities"]["extensions"]


def test_server_rejects_undeclared_client(plain: Wire) -> None:
    """A call without the extension is answered when the run has ended, and is no task."""
    found = plain.call("work", {"seconds": 1})
    assert found["resultType"] == "complete"
    assert "taskId" not in found
    assert found["structuredContent"]["done"] == 20


def test_tasks_per_request_meta_opt_in(plain: Wire) -> None:
    asked = {"name": "work", "arguments": {"seconds": 2}}
    found = plain.result("tools/call", asked, tasks=True)
    assert found["resultType"] == "task"
    plain.result("tasks/cancel", {"taskId": found["taskId"]}, tasks=True)


# ---- dispatch and envelope


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
def test_tasks_removed_methods(wire: Wire, method: str) -> None:
    assert wire.code(method, {"taskId": "some"}) == METHOD_NOT_FOUND


def test_tasks_server_directed_creation_no_hint(wire: Wire) -> None:
    assert wire.call("failing_job", {})["resultType"] == "task"


def test_legacy_task_param_ignored(wire: Wire) -> None:
    found = wire.ended("greet", {"name": "Ada"}, task={"ttl": 60_000, "pollInterval": 100})
    assert found["resultType"] == "complete"
    assert "taskId" not in found
    assert found["content"]


def test_tasks_immediate_result_shortcut(wire: Wire) -> None:
    found = wire.ended("work", {"seconds": 0})
    assert (found["resultType"], found["isError"]) == ("complete", False)
    assert found["content"][0]["type"] == "text"


def test_tasks_result_type_complete_on_non_task_responses(wire: Wire) -> None:
    assert wire.ended("greet", {"name": "Ada"})["resultType"] == "complete"
    id = wire.started("confirm_delete", filename="a.txt")
    assert wire.task(id, "input_required")["resultType"] == "complete"
    update = {"taskId": id, "inputResponses": {"unknown": {"ignored": True}}}
    assert wire.result("tasks/update", update)["resultType"] == "complete"
    assert wire.result("tasks/cancel", {"taskId": id})["resultType"] == "complete"


def test_durable_create_strong_consistency(wire: Wire) -> None:
    """Fails if the answer is sent before the run is committed."""
    id = wire.started("work", seconds=30)
    assert wire.task(id)["taskId"] == id
    wire.result("tasks/cancel", {"taskId": id})


def test_tasks_get_invalid_task_id(wire: Wire) -> None:
    for method, more in TASK_METHODS.items():
        for id in ("unknown", "", "a/b", "\x00", "mcp~x", "x" * 3000):
            asked = {"taskId": id, **more}
            assert wire.code(f"tasks/{method}", asked, is_routed=False) == INVALID_PARAMS
        asked = {"taskId": "unknown", **more}
        assert wire.code(f"tasks/{method}", asked) == INVALID_PARAMS


# ---- lifecycle


def test_tasks_sync_tool_call(wire: Wire) -> None:
    found = wire.ended("greet", {"name": "Ada"})
    assert found["structuredContent"] == {"name": "Ada", "text": "Hello, Ada!"}
    assert "taskId" not in found


def test_result_type_task_on_create(wire: Wire) -> None:
    """What is asked belongs to ``tasks/get``. Fails with ``inputRequests``."""
    for name, given in (("work", {"seconds": 2}), ("confirm_delete", {"filename": "a.txt"})):
        found = wire.call(name, given)
        assert found["resultType"] == "task"
        assert not {"task", "result", "error", "inputRequests"} & {*found}
        assert found["status"] in ("working", "input_required")
        for when in ("createdAt", "lastUpdatedAt"):
            assert datetime.fromisoformat(found[when]).tzinfo is not None
        wire.result("tasks/cancel", {"taskId": found["taskId"]})


def test_tasks_get_status_working(wire: Wire) -> None:
    id = wire.started("work", seconds=3)
    found = wire.task(id)
    assert found["status"] == "working"
    assert not {"result", "error", "inputRequests"} & {*found}
    wire.result("tasks/cancel", {"taskId": id})


def test_tasks_get_status_completed(wire: Wire) -> None:
    found = wire.task(wire.started("work", seconds=1), "completed")
    assert found["result"]["content"]
    assert found["result"]["structuredContent"]["done"] == 20


def test_tool_error_uses_completed_status(wire: Wire) -> None:
    found = wire.task(wire.started("failing_job"), "completed", "failed")
    assert found["status"] == "completed"
    assert found["result"]["isError"] is True
    assert "it cannot be done" not in str(found)
    assert "error" not in found


def test_cancel_ack_empty_result(wire: Wire) -> None:
    id = wire.started("work", seconds=30)
    ack = wire.result("tasks/cancel", {"taskId": id})
    assert ack["resultType"] == "complete"
    assert not ENVELOPE & {*ack}
    found = wire.task(id, "cancelled")
    assert not {"result", "error", "inputRequests"} & {*found}


def test_tasks_cancel_terminal_idempotent_ack(wire: Wire) -> None:
    id = wire.started("work", seconds=1)
    wire.task(id, "completed")
    for _ in range(2):
        ack = wire.result("tasks/cancel", {"taskId": id})
        assert ack["resultType"] == "complete"
        assert not ENVELOPE & {*ack}
    assert wire.task(id)["status"] == "completed"


# ---- headers


def test_tasks_headers_tolerate_mcp_method_on_tools_call(wire: Wire) -> None:
    assert wire.ended("greet", {"name": "Ada"})["structuredContent"]["text"] == "Hello, Ada!"


def test_routing_headers_accepted_on_tasks_get(wire: Wire) -> None:
    id = wire.started("confirm_delete", filename="a.txt")
    found = wire.result("tasks/get", {"taskId": id}, headers={"Mcp-Name": id})
    assert found["taskId"] == id
    wire.result("tasks/cancel", {"taskId": id})


def test_tasks_headers_reject_mismatched_method(wire: Wire) -> None:
    asked = {"name": "greet", "arguments": {"name": "Ada"}}
    wrong = {"Mcp-Method": "tools/list"}
    assert wire.code("tools/call", asked, headers=wrong) == HEADER_MISMATCH


def test_server_rejects_mismatched_mcp_name_on_tasks_get(wire: Wire) -> None:
    """An intermediary that routes by the header must see what the server sees."""
    id = wire.started("confirm_delete", filename="a.txt")
    wrong = {"Mcp-Name": "another"}
    assert wire.code("tasks/get", {"taskId": id}, headers=wrong) == HEADER_MISMATCH
    wire.result("tasks/cancel", {"taskId": id})


# ---- input


def test_tasks_get_status_input_required(wire: Wire) -> None:
    id = wire.started("confirm_delete", filename="a.txt")
    (request,) = wire.task(id, "input_required")["inputRequests"].values()
    assert request["method"] == "elicitation/create"
    assert request["params"]["message"] == "Delete a.txt?"
    assert request["params"]["requestedSchema"]["type"] == "object"
    wire.result("tasks/cancel", {"taskId": id})


def test_tasks_mrtr_tasks_update_resumes(wire: Wire) -> None:
    id = wire.started("confirm_delete", filename="a.txt")
    (key,) = wire.task(id, "input_required")["inputRequests"]
    given = {key: {"action": "accept", "content": {"answer": True}}}
    ack = wire.result("tasks/update", {"taskId": id, "inputResponses": given})
    assert ack["resultType"] == "complete"
    assert not ENVELOPE & {*ack}
    found = wire.task(id, "completed")
    assert found["result"]["structuredContent"]["confirmed"] is True


def test_tasks_mrtr_partial_fulfillment(wire: Wire) -> None:
    """One of two answers: the other question stays open, under its key."""
    id = wire.started("multi_input", name="x")
    first, second = wire.task(id, "input_required")["inputRequests"]

    def answer(key: str) -> None:
        given = {key: {"action": "accept", "content": {"answer": "yes"}}}
        ack = wire.result("tasks/update", {"taskId": id, "inputResponses": given})
        assert ack["resultType"] == "complete"

    answer(first)
    wait_until(lambda: first not in wire.task(id).get("inputRequests", {first: 0}), 10)
    found = wire.task(id, "input_required", "completed")
    assert (found["status"], [*found["inputRequests"]]) == ("input_required", [second])
    answer(first)  # delivered already: ignored
    answer(second)
    found = wire.task(id, "completed")
    assert found["result"]["structuredContent"]["answers"] == ["yes", "yes"]


# ---- request state, fields on the wire


def test_tasks_create_result_no_request_state(wire: Wire) -> None:
    found = wire.call("confirm_delete", {"filename": "a.txt"})
    assert "requestState" not in found
    assert "requestState" not in wire.task(found["taskId"], "input_required")
    wire.result("tasks/cancel", {"taskId": found["taskId"]})


def test_tasks_wire_field_renames(wire: Wire) -> None:
    found = wire.call("work", {"seconds": 2})
    assert found["ttlMs"] is None or isinstance(found["ttlMs"], int)
    assert isinstance(found["pollIntervalMs"], int)
    assert not {"ttl", "pollInterval"} & {*found}
    wire.result("tasks/cancel", {"taskId": found["taskId"]})


def test_tasks_no_early_ttl_expiry(wire: Wire) -> None:
    """There is no expiry: a task that has ended stays until its thread is removed."""
    id = wire.started("work", seconds=1)
    assert wire.task(id, "completed")["ttlMs"] is None
    time.sleep(0.5)
    assert wire.task(id)["status"] == "completed"


def test_tasks_no_related_task_meta_on_inlined_result(wire: Wire) -> None:
    found = wire.task(wire.started("work", seconds=1), "completed")
    assert "io.modelcontextprotocol/related-task" not in found["result"].get("_meta", {})


# ---- without tasks


def test_question_of_a_call_without_tasks_is_asked_in_its_answer(plain: Wire) -> None:
    """``input_required``, and the call repeated with its ``requestState`` has the result."""
    asked = {"name": "confirm_delete", "arguments": {"filename": "a.txt"}}
    found = plain.result("tools/call", asked)
    assert found["resultType"] == "input_required"
    assert "taskId" not in found
    (key,) = found["inputRequests"]
    given = {key: {"action": "accept", "content": {"answer": False}}}
    again = {**asked, "requestState": found["requestState"], "inputResponses": given}
    found = plain.result("tools/call", again)
    assert found["structuredContent"]["confirmed"] is False
