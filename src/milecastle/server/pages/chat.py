"""A thread's conversation: messages, calls and answers, and a field to continue it.

Only the newest messages are shown, and each text passed the hook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import RedirectResponse, Response

from milecastle.errors import InvalidRequest
from milecastle.server.chat.following import is_unfinished
from milecastle.server.chat.messages import MESSAGES, as_object, role_of, submit_message, text_of
from milecastle.server.documents import HttpDocument, RunRequest
from milecastle.server.pages.excerpts import Excerpt, Excerpts, short
from milecastle.server.pages.json_tree import Tree
from milecastle.server.pages.thread import (
    OpenQuestion,
    made_of,
    shown_questions,
    shown_tree,
    thread_head,
    thread_url,
    what_wrote,
)
from milecastle.server.pages.thread_reading import Reading, read_thread
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.pages.words import clock, duration, plural
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.views.conversations import checkpoints_of_messages
from milecastle.views.lines import moment
from milecastle.views.values import anything, as_json, plain

_SHOWN: Final = 100
_BESIDE: Final = 20
_VALUES: Final = 120_000
_TEXT, _VALUE, _REST = 8000, 4000, 12_000
_SAID: Final = 60
_GAP: Final = 60_000_000
"""Microseconds of a pause that is said between two runs."""
_CLOSED: Final = ("failed", "cancelled", "interrupted")


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call. Its result is a tree if it is JSON, else a text; both are empty before."""

    name: str
    said: str
    args: Tree
    result: Tree | None
    text: Excerpt | None
    has_failed: bool
    question: OpenQuestion | None


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message. ``since`` is the line above it, where a run begins; ``seq`` is 0 if unknown."""

    role: str
    by: str
    seq: int
    time: str
    took: str
    since: str
    blocks: list[tuple[str, list[str]]]
    is_cut: bool
    calls: list[ChatCall]


class ChatStep(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    what: str
    added: str
    took: str


class ChatForm(HttpDocument, frozen=True):
    message: str


@WebPage("GET", "/threads/{thread}/chat", "read", made_of=made_of)
def show_chat(request: ApiRequest) -> PageView:
    service, key = request.service, request.key
    read = read_thread(service, key, None)
    head = thread_head(service, read, "chat")
    excerpts = Excerpts(_VALUES, service.redact)
    values = read.decoded.values if read.decoded else {}
    questions = shown_questions(read, excerpts, service.redact, None)
    seqs = _written(service, read)
    found = messages_of(excerpts, values)
    messages = list(_messages(read, excerpts, found, seqs, questions["questions"]))
    placed = [call.question for one in messages for call in one.calls if call.question]
    rest = [
        (name, excerpts.hidden(f"$.{name}", value), f"$.{name}")
        for name, value in values.items()
        if name != MESSAGES
    ]
    scopes = request.identity.scopes
    return PageView(
        template="chat.html",
        live="_chat.html",
        title=key.thread,
        commands=(
            ("show", *of_tenant(key.tenant), "--", key.thread),
            ("submit", *of_tenant(key.tenant), f"--thread={key.thread}", "--input=JSON"),
        ),
        values={
            **head,
            "messages": messages,
            "left": max(0, len(anything(values.get(MESSAGES) or ())) - _SHOWN),
            "unreadable": read.unreadable,
            "questions": [one for one in questions["questions"] if one not in placed],
            "asked_at": questions["asked_at"],
            "steps": _steps(read, seqs, found),
            "rest": excerpts.tree(rest, _REST, more=f"{head['api']}/state") if rest else None,
            "may_answer": head["is_served"] and "answer" in scopes,
            "said": _how(service, read) if head["is_served"] and "run" in scopes else "",
        },
    )


def messages_of(excerpts: Excerpts, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    stored = values.get(MESSAGES)
    if not isinstance(stored, list | tuple):
        return []
    found = excerpts.hidden(f"$.{MESSAGES}", plain(anything(stored)[-_SHOWN:]))
    listed: list[Any] = anything(found) if isinstance(found, list) else []
    return [one for one in map(as_object, listed) if one is not None]


def _written(service: Service, read: Reading) -> Mapping[str, int]:
    app = service.apps.get(read.info.graph)
    keyring = None if app is None else app.encryption
    return checkpoints_of_messages(
        service.store, read.key, lambda: keyring, MESSAGES, read.head.seq
    )


def _messages(
    read: Reading,
    excerpts: Excerpts,
    found: Sequence[dict[str, Any]],
    seqs: Mapping[str, int],
    questions: Sequence[OpenQuestion],
) -> Iterator[ShownMessage]:
    results = {str(one.get("tool_call_id")): one for one in found if role_of(one) == "tool"}
    entries = {one.seq: one for one in read.entries}
    run = ""
    number, before = 0, 0
    for one in found:
        if role_of(one) == "tool":
            continue
        seq = seqs.get(str(one.get("id")), 0)
        entry, since = entries.get(seq), ""
        if entry is not None and entry.run_id != run:
            number, run = number + 1, entry.run_id
            gap = entry.created_at - before if before else 0
            pause = f", after {duration(gap / 1_000_000)}" if gap > _GAP else ""
            since = f"Run {number}, {clock(moment(entry.created_at) or '')}{pause}"
        before = entry.created_at if entry is not None else before
        text = excerpts.text("messages", text_of(one.get("content")), _TEXT)
        role = role_of(one)
        yield ShownMessage(
            role=role,
            by=short(
                str(one.get("name") or {"user": "User", "assistant": "Model"}.get(role, role))
            ),
            seq=seq,
            time=(moment(entry.created_at) or "") if entry is not None else "",
            took=_took(read, seq) if role != "user" else "",
            since=since,
            blocks=_blocks(text.text),
            is_cut=text.is_cut,
            calls=[_call(excerpts, call, results, questions) for call in _calls(one)],
        )


def _took(read: Reading, seq: int) -> str:
    entries = {one.seq: one for one in read.entries}
    entry, before = entries.get(seq), entries.get(seq - 1)
    if entry is None or before is None or entry.source != "step":
        return ""
    return duration((entry.created_at - before.created_at) / 1_000_000)


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    for part in text.strip("\n").split("\n\n"):
        for line in part.split("\n"):
            kind = "ul" if line.lstrip()[:2] in ("- ", "* ") else "p"
            said = line.lstrip()[2:] if kind == "ul" else line
            if blocks and blocks[-1][0] == kind and line is not part.split("\n")[0]:
                blocks[-1][1].append(said)
            elif said:
                blocks.append((kind, [said]))
    return blocks


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls: Any = message.get("tool_calls")
    listed: list[Any] = anything(calls) if isinstance(calls, list) else []
    return [one for one in map(as_object, listed) if one is not None]


def _call(
    excerpts: Excerpts,
    call: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    questions: Sequence[OpenQuestion],
) -> ChatCall:
    function = as_object(call.get("function")) or {}
    args = _parsed(call.get("args", function.get("arguments")))
    result = results.get(str(call.get("id")))
    found = _parsed(None if result is None else result.get("content"))
    is_tree = isinstance(found, dict | list)
    asked = next((one for one in questions if one.call and one.call == call.get("id")), None)
    text = text_of(found) if found is not None else ""
    return ChatCall(
        name=short(str(call.get("name") or function.get("name") or "call")),
        said=_brief(args),
        args=shown_tree(excerpts, args, _VALUE),
        result=shown_tree(excerpts, found, _VALUE) if is_tree else None,
        text=excerpts.text("messages", text, _TEXT) if result is not None and not is_tree else None,
        has_failed=bool(result is not None and result.get("is_error")),
        question=asked,
    )


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _brief(args: Any) -> str:
    found: list[Any] = [*anything(args).values()] if isinstance(args, Mapping) else [args]
    return ", ".join(as_json(one)[:_SAID] for one in found if not isinstance(one, dict | list))[
        :_SAID
    ]


def _steps(
    read: Reading, seqs: Mapping[str, int], found: Sequence[dict[str, Any]]
) -> list[ChatStep]:
    added: dict[int, list[str]] = {}
    calls: dict[int, int] = {}
    for one in found:
        seq = seqs.get(str(one.get("id")), 0)
        added.setdefault(seq, []).append("result" if role_of(one) == "tool" else "message")
        calls[seq] = calls.get(seq, 0) + len(_calls(one))
    steps: list[ChatStep] = []
    for entry in [*reversed(read.entries)][:_BESIDE]:
        kinds = added.get(entry.seq, [])
        said = [f"+{plural(kinds.count(kind), kind)}" for kind in dict.fromkeys(kinds)]
        said += [plural(calls[entry.seq], "call")] if calls.get(entry.seq) else []
        steps.append(
            ChatStep(
                seq=entry.seq,
                what=what_wrote(read, entry)[2],
                added=", ".join(said),
                took=_took(read, entry.seq),
            )
        )
    return steps


def _how(service: Service, read: Reading) -> str:
    """The effect of a message sent now; empty if it would be refused."""
    if is_unfinished(read.info.status):
        inboxes = service.apps[read.info.graph].graph.schema.inboxes.values()
        return "The run gets it at its next step." if MESSAGES in inboxes else ""
    is_open = read.info.status == "interrupted"
    return "It closes the open question." if is_open else "It starts a run."


@WebPage("POST", "/threads/{thread}/chat", "run", form=ChatForm)
async def say(request: ApiRequest) -> Response:
    text: str = request.body.message.replace("\r\n", "\n").strip()
    if not text:
        raise InvalidRequest("the message is empty: go back and write one")
    service, key = request.service, request.key
    app = await request.off_loop(service.app_of, key)
    asked = RunRequest(input={MESSAGES: [{"role": "user", "content": text}]}, graph=app.graph.name)
    await submit_message(service, key, app, asked, _CLOSED)
    return RedirectResponse(f"{thread_url(key.thread)}/chat", 303)
