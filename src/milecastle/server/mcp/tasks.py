"""Runs as tasks: started, looked at, answered and cancelled under one unguessable id.

Rules:

- A task's run is committed before its id is returned, so any server with the store continues it.
- The tenant is the caller's: another tenant's task id is unknown.
- A question's key belongs to one question on one branch, and to one refusal of its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any, Final, cast

from milecastle.app.application import App
from milecastle.app.results import Snapshot
from milecastle.app.runs.submission import Handle
from milecastle.errors import AlreadyAnswered, InvalidRequest, NotAsked
from milecastle.model.actor import Actor
from milecastle.model.checkpoint import to_datetime
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.server.identity import Identity
from milecastle.server.mcp.forms import QuestionForm, form_of
from milecastle.server.problems import Refused, shown_message
from milecastle.server.redaction import after_hook, redacted
from milecastle.server.service import Service
from milecastle.views.lines import question_lines
from milecastle.views.values import as_json, fitted, plain

PREFIX: Final = "mcp~"
"""Of the threads of tasks; the task's id follows."""

_POLL: Final = 500
_LONGEST_POLL: Final = 30_000

Address = Callable[[str], str | None]
"""The page of a thread on this server, if it has pages."""


class UnknownTask(Exception):
    """The caller has no task with this id."""


class Tasks:
    """A service's tasks. Every method waits for the store: call it off the event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def start(
        self, caller: Identity, graph: str, given: Mapping[str, Any]
    ) -> tuple[str, Handle[Any]]:
        id, app = token_urlsafe(18), self._service.named(graph)
        key = ThreadKey(caller.tenant, f"{PREFIX}{id}")
        return id, app.submit(fitted(app.graph.schema, dict(given), {}), key)

    def cancel(self, caller: Identity, id: str) -> None:
        key, app, _ = self._find(caller, id)
        app.cancel(key)

    def look(self, caller: Identity, id: str, address: Address) -> dict[str, Any]:
        key, app, info = self._find(caller, id)
        snapshot: Snapshot[Any] = app.state(key)
        made: dict[str, Any] = {
            "taskId": id,
            "status": "working",
            "createdAt": _time(to_datetime(info.started_at)),
            "lastUpdatedAt": _time(snapshot.timestamp),
            "ttlMs": None,
            "pollIntervalMs": _poll(snapshot),
        }
        asked = [one for one in snapshot.interrupts if one.asks]
        match snapshot.status:
            case "completed":
                return {**made, "status": "completed", "result": self._result(app, snapshot)}
            case "cancelled":
                return {**made, "status": "cancelled"}
            case "interrupted" if asked:
                requests = {_key(one): self._request(one, address(key.thread)) for one in asked}
                return {**made, "status": "input_required", "inputRequests": requests}
            case "failed" if info.due_at is None:
                result = failed(self._failure(key, info))
                return {**made, "status": "completed", "result": result}
            case _:
                where = ", ".join(snapshot.next)
                return {**made, "statusMessage": f"{snapshot.status} at {where}"}

    def answer(self, caller: Identity, id: str, responses: Mapping[str, Any]) -> None:
        """Give the answers in a client's responses; unknown keys and second answers are ignored.

        Raises:
            ValueError: one is not valid; the question stays open.
        """
        key, app, _ = self._find(caller, id)
        open_questions = {_key(one): one for one in app.state(key).interrupts if one.asks}
        by = Actor(caller.name or f"tenant:{caller.tenant}", "authenticated")
        answers: dict[str, Any] = {}
        for name, response in responses.items():
            asked, action = open_questions.get(name), response.get("action")
            if asked is None or action not in ("accept", "decline"):
                continue
            if action == "accept":
                answers[asked.id] = self._form(asked).read(response.get("content") or {})
            elif asked.answer is None:
                answers[asked.id] = None
            else:
                app.cancel(key)
                return
        try:
            if answers:
                app.answer(key, answers=answers, by=by)
        except (AlreadyAnswered, NotAsked):
            return
        except InvalidRequest as error:
            raise ValueError(shown_message(error, self._service.redact)) from None

    def _find(self, caller: Identity, id: str) -> tuple[ThreadKey, App[Any], ThreadInfo]:
        try:
            key = self._service.key(caller.tenant, f"{PREFIX}{id}")
            info = self._service.line(key)
            return key, self._service.named(info.graph), info
        except (Refused, InvalidRequest):
            raise UnknownTask(id) from None

    def _result(self, app: App[Any], snapshot: Snapshot[Any]) -> dict[str, Any]:
        shown, redact = app.graph.schema.output, self._service.redact
        names = [*snapshot] if shown is None else [name for name in shown if name in snapshot]
        return done(
            {name: after_hook(f"$.{name}", plain(snapshot[name]), redact) for name in names}
        )

    def _failure(self, key: ThreadKey, info: ThreadInfo) -> str:
        run = self._service.store.run(key, info.run_id)
        failure = self._service.store.failure(key, info.run_id) if run is not None else None
        return failure.error_type if failure is not None else "unknown"

    def _form(self, asked: Interrupt) -> QuestionForm:
        schema = after_hook("answer", asked.answer, self._service.redact)
        return form_of(cast("dict[str, Any]", schema) if isinstance(schema, dict) else None)

    def _request(self, asked: Interrupt, page: str | None) -> dict[str, Any]:
        (line,) = question_lines([asked])
        shown, form = redacted(line, self._service.redact), self._form(asked)
        said = str(shown.question or f"{asked.node} asks")
        if shown.show is not None:
            said += f"\n{as_json(shown.show)}"
        if shown.refused:
            said += f"\n({shown.refused})"
        params: dict[str, Any] = {"mode": "form", "message": said, "requestedSchema": form.schema}
        if form.kind == "json" and asked.answer is not None and page is not None:
            params = {"mode": "url", "message": said, "url": page, "elicitationId": _key(asked)}
        return {"method": "elicitation/create", "params": params}


def done(value: dict[str, Any]) -> dict[str, Any]:
    """A tool's result with structured content, and the same as text for older clients."""
    content = [{"type": "text", "text": as_json(value)}]
    found = {"content": content, "isError": False, "resultType": "complete"}
    return {**found, "structuredContent": value}


def failed(kind: str) -> dict[str, Any]:
    return refused(f"the run failed: {kind}")


def refused(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "resultType": "complete"}


def _key(asked: Interrupt) -> str:
    refused = asked.refused
    mark = sha256(refused.encode("utf-8", "replace")).hexdigest()[:8] if refused else ""
    return f"{asked.id}!{mark}" if mark else asked.id


def _poll(snapshot: Snapshot[Any]) -> int:
    if snapshot.wake_at is None:
        return _POLL
    left = (snapshot.wake_at - datetime.now(UTC)).total_seconds() * 1000
    return int(min(max(left, _POLL), _LONGEST_POLL))


def _time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")
