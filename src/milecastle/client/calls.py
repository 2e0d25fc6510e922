"""A client's calls, without I/O: generators that yield effects.

Rules:

- A request is repeated until the server has answered it, or the caller's patience is over. So each
  request that changes something has a key, made before it is sent for the first time: whatever
  happened to the lost ones, it takes effect once.
- A reader of events continues after the last event it was given, whichever server answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from milecastle.client.documents import (
    Answered,
    Cancelled,
    HistoryPage,
    InboxPage,
    RunResult,
    SubmittedRun,
    ThreadSnapshot,
    ThreadsPage,
)
from milecastle.client.effects import (
    HttpAnswer,
    HttpCall,
    LostResponse,
    NextPart,
    Pause,
    Steps,
    Yielded,
)
from milecastle.client.event_reader import EventReader
from milecastle.client.refusals import UNAVAILABLE, error_of, failure_of, unavailable

D = TypeVar("D", bound=Answered)

_LONGEST_POLL: Final = 20.0
"""Seconds a server is asked to wait for a run in one request."""

_SILENCE: Final = 60.0
"""Seconds of silence after which a stream is considered lost: servers send a comment every 15."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


def path_of(thread: str, *parts: str) -> str:
    """A thread's path; a name with nothing but dots is not a step upwards."""
    name = quote(thread, safe="")
    return "/".join(["/v1/threads", name if name.strip(".") else name.replace(".", "%2E"), *parts])


class Patience:
    """Repeats a call for some seconds after the server was last heard."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._end = monotonic() + self._seconds
        self._pause = _FIRST_PAUSE

    def pause(self, reason: str) -> Pause:
        """The next pause; longer each time, and not the same for all clients.

        Raises:
            Unavailable: the patience is over.
        """
        if monotonic() >= self._end:
            raise unavailable(reason, self._seconds)
        pause, self._pause = self._pause, min(_LONGEST_PAUSE, self._pause * 2)
        return Pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 - it spreads clients


def answered(request: HttpCall, patience: float) -> Steps[HttpAnswer]:
    waiting = Patience(patience)
    while True:
        answer = yield request
        if isinstance(answer, HttpAnswer) and answer.status < 300:
            return answer
        if isinstance(answer, HttpAnswer) and answer.status not in UNAVAILABLE:
            raise error_of(answer)
        yield waiting.pause(_reason(answer))


def _reason(answer: HttpAnswer | LostResponse) -> str:
    return answer.reason if isinstance(answer, LostResponse) else f"status {answer.status}"


def document(kind: type[D], request: HttpCall, patience: float) -> Steps[D]:
    answer = yield from answered(request, patience)
    return msgspec.json.decode(answer.content, type=kind)


def cancelled(thread: str, run_id: str | None, patience: float) -> Steps[bool]:
    """Cancel the current run, and no later one, however often it is asked."""
    path = path_of(thread)
    if run_id is None:
        shown = yield from document(ThreadSnapshot, HttpCall("GET", path), patience)
        run_id = shown.checkpoint.run_id
    request = HttpCall("POST", path_of(thread, "cancel"), {"run_id": run_id})
    found = yield from document(Cancelled, request, patience)
    return found.cancelled


def waited(thread: str, timeout: float | None, patience: float) -> Steps[RunResult]:
    end = None if timeout is None else monotonic() + timeout
    while True:
        left = _LONGEST_POLL if end is None else end - monotonic()
        wait = max(0.01, min(_LONGEST_POLL, left))
        query = {"wait": f"{wait:.3f}"}
        request = HttpCall("GET", path_of(thread, "result"), query, seconds=wait + 60)
        answer = yield from answered(request, patience)
        if answer.status == 200:
            result = msgspec.json.decode(answer.content, type=RunResult)
            if result.status in ("failed", "cancelled"):
                raise failure_of(result)
            return result
        if left <= 0:
            run = msgspec.json.decode(answer.content, type=SubmittedRun)
            raise TimeoutError(
                f"run {run.run_id} of thread '{thread}' has not stopped within {timeout} seconds "
                f"(it is {run.status}); it continues: wait for it again"
            )


def shown(thread: str, at: int | str | None, patience: float) -> Steps[ThreadSnapshot]:
    query = {} if at is None else {"at": str(at)}
    found = yield from document(ThreadSnapshot, HttpCall("GET", path_of(thread), query), patience)
    if found.state is None:  # it is encrypted, and the server does not have the key
        return found
    state: dict[str, Any] = dict(found.state)
    for name in [name for name, value in state.items() if _is_omitted(value)]:
        query = {"at": str(found.checkpoint.seq), "channel": name}
        answer = yield from answered(HttpCall("GET", path_of(thread, "state"), query), patience)
        state[name] = msgspec.json.decode(answer.content)
    return msgspec.structs.replace(found, state=state)


def _is_omitted(value: Any) -> bool:
    return isinstance(value, Mapping) and "$omitted" in value


def listed_threads(query: Mapping[str, str], limit: int | None, patience: float) -> Steps[None]:
    yield from _listed(HttpCall("GET", "/v1/threads", query), ThreadsPage, limit, patience)


def listed_questions(query: Mapping[str, str], limit: int | None, patience: float) -> Steps[None]:
    yield from _listed(HttpCall("GET", "/v1/questions", query), InboxPage, limit, patience)


def listed_history(thread: str, limit: int | None, patience: float) -> Steps[None]:
    yield from _listed(HttpCall("GET", path_of(thread, "history")), HistoryPage, limit, patience)


def _listed(
    request: HttpCall,
    kind: type[ThreadsPage | InboxPage | HistoryPage],
    limit: int | None,
    patience: float,
) -> Steps[None]:
    left = limit
    query = dict(request.query)
    while left is None or left > 0:
        query["limit"] = str(min(100, 100 if left is None else left))
        asked = msgspec.structs.replace(request, query=query)
        page = yield from document(kind, asked, patience)
        lines = page.checkpoints if isinstance(page, HistoryPage) else page.threads
        for line in lines:
            yield Yielded(line)
        if page.next is None:
            return
        query["before" if isinstance(page, HistoryPage) else "after"] = str(page.next)
        left = None if left is None else left - len(lines)


def followed(
    thread: str, after: int | str, emitted: bool, stay: bool, patience: float
) -> Steps[None]:
    """Yield an ``Yielded`` for each event after an id; without ``stay``, until the run stops."""
    waiting, last = Patience(patience), str(after)
    while True:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        path = path_of(thread, "events")
        request = HttpCall("GET", path, headers=headers, seconds=_SILENCE, streams=True)
        answer = yield request
        if isinstance(answer, HttpAnswer) and answer.status not in UNAVAILABLE:
            if answer.status != 200:
                raise error_of(answer)
            reader = EventReader()
            while part := (yield from _part()):
                waiting.renew()
                for event in reader.read(part):
                    last = event.id or last
                    if event.type == "stopped" and not stay:
                        return
                    if emitted or event.type in ("state", "stopped"):
                        yield Yielded(event)
            yield waiting.pause("the stream ended")
        else:
            yield waiting.pause(_reason(answer))


def _part() -> Steps[bytes]:
    found = yield NextPart()
    return b"" if isinstance(found, LostResponse) else found
