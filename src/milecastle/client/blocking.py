"""The client, for code without an event loop. Its methods are those of ``AsyncClient``, too."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal, Self, TypeVar
from uuid import uuid4

import httpx

from milecastle.client.calls import (
    cancelled,
    document,
    followed,
    listed_history,
    listed_questions,
    listed_threads,
    path_of,
    shown,
    waited,
)
from milecastle.client.documents import (
    Answered,
    CheckpointInfo,
    ClientEvent,
    RunResult,
    SentMessage,
    SubmittedRun,
    ThreadSnapshot,
    ThreadSummary,
    WaitingThread,
)
from milecastle.client.effects import (
    ClientEffect,
    HttpAnswer,
    HttpCall,
    LostResponse,
    Pause,
    Steps,
    Yielded,
)
from milecastle.client.wire import arguments_of, settings_for, without_nothing

T = TypeVar("T")
D = TypeVar("D", bound=Answered)

UNANSWERED: Any = object()
"""Marks a missing answer, because ``None`` may be an answer."""


class Client:
    """A client for the server at ``url``, which ``milecastle serve`` prints.

    A call whose response is lost is sent again, until the server answers or has not for
    ``patience`` seconds (then ``Unavailable``). It takes effect once: ``submit``, ``send`` and
    ``answer`` have a key, which is made before the first attempt. Give ``key=`` yourself if the
    call must be safe to repeat after your own process died. Errors are those of ``App``, with
    message and code; ``RequestRefused`` is for refusals without such an error: a token without the
    scope, a request that is too large. Threads may share a client. ``http`` are more arguments for
    httpx's client: ``verify``, ``cert``, ``transport``, ``headers``.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience: float = 60.0,
        http: Mapping[str, Any] | None = None,
    ) -> None:
        self._http = httpx.Client(**settings_for(url, token, http))
        self._patience = patience

    def submit(
        self,
        input: Mapping[str, Any],
        thread: str | None = None,
        *,
        graph: str | None = None,
        key: str | None = None,
        retry: bool = False,
        delay: float = 0.0,
        priority: int = 0,
        if_busy: Literal["reject", "queue", "cancel"] = "reject",
        if_absent: bool = False,
        tags: Iterable[str] = (),
        keys: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> SubmittedRun:
        """Queue a run for the workers, as ``App.submit`` does; a new thread without ``thread``.

        Each call is a separate run, unless it has another's ``key``: then that run is found, as it
        is; with ``retry``, one that failed or was cancelled is retried. ``graph`` is needed for a
        new thread if the server has several.
        """
        options = {"if_busy": if_busy, "if_absent": if_absent, "retry": retry}
        body = {
            "input": input,
            "graph": graph,
            "key": str(uuid4()) if key is None else key,
            "priority": priority,
            "delay": delay,
            "options": options,
            "tags": list(tags),
            "keys": keys,
            "config": config,
        }
        path = path_of(str(uuid4()) if thread is None else thread, "runs")
        return self._document(SubmittedRun, HttpCall("POST", path, body=without_nothing(body)))

    def answer(
        self,
        thread: str,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        question: str | None = None,
        key: str | None = None,
        reason: str = "",
        shown: str | None = None,
        on_behalf_of: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> SubmittedRun:
        """Answer a thread's open questions: the only one, ``question``, or several by their ids.

        The token's name is stored as who answered; ``reason`` and ``on_behalf_of`` are as you say.
        With ``shown``, the question's digest, a question that has changed is not answered.
        """
        given: dict[str, Any] = {} if answer is UNANSWERED else {"answer": answer}
        if answers is not None or question is not None:
            given = {"answers": dict(answers or {})}
            if question is not None:
                given["answers"][question] = None if answer is UNANSWERED else answer
        body = {
            "key": str(uuid4()) if key is None else key,
            "reason": reason,
            "shown": shown,
            "on_behalf_of": on_behalf_of,
            "config": config,
        }
        request = HttpCall("POST", path_of(thread, "answers"), body=without_nothing(body) | given)
        return self._document(SubmittedRun, request)

    def send(
        self,
        thread: str,
        value: Any,
        topic: str = "",
        *,
        key: str | None = None,
        by: str = "",
        quiet: float | None = None,
        at_most: float | None = None,
    ) -> SentMessage:
        """Send a message to a thread, whatever its run does; see ``App.send``."""
        body = {
            "topic": topic,
            "key": str(uuid4()) if key is None else key,
            "by": by or None,
            "quiet": quiet,
            "at_most": at_most,
        }
        body = {**without_nothing(body), "value": value}
        return self._document(SentMessage, HttpCall("POST", path_of(thread, "messages"), body=body))

    def retry(
        self, thread: str, *, delay: float = 0.0, config: Mapping[str, Any] | None = None
    ) -> SubmittedRun:
        """Queue a thread whose run failed, was lost or was cancelled for the workers.

        If its response is lost and the run fails again at once, it is retried once more.
        """
        body = without_nothing({"delay": delay, "config": config})
        return self._document(SubmittedRun, HttpCall("POST", path_of(thread, "retry"), body=body))

    def cancel(self, thread: str, *, run_id: str | None = None) -> bool:
        """Cancel a thread's unfinished run; with ``run_id``, only that one.

        ``False`` if there was none. Never cancels a run started after this call.
        """
        return self._run(cancelled(thread, run_id, self._patience))

    def wait(self, thread: str, timeout: float | None = None) -> RunResult:
        """Wait until the thread's run ends or asks something, in whatever process it runs.

        A failed run raises ``RunFailed``, a cancelled one ``RunCancelled``. After ``timeout``
        seconds, ``TimeoutError``.
        """
        return self._run(waited(thread, timeout, self._patience))

    def state(self, thread: str, at: int | str | None = None) -> ThreadSnapshot:
        """A thread's state at its head, or at a checkpoint given by seq or id."""
        return self._run(shown(thread, at, self._patience))

    def history(self, thread: str, limit: int | None = None) -> Iterator[CheckpointInfo]:
        """The thread's checkpoints, newest first."""
        return self._each(listed_history(thread, limit, self._patience))

    def threads(
        self,
        *,
        status: str | None = None,
        graph: str | None = None,
        tag: str | None = None,
        prefix: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[ThreadSummary]:
        """The tenant's threads, by name."""
        query = {"status": status, "graph": graph, "tag": tag, "prefix": prefix, "after": after}
        return self._each(listed_threads(without_nothing(query), limit, self._patience))

    def questions(
        self, *, graph: str | None = None, limit: int | None = None
    ) -> Iterator[WaitingThread]:
        """The threads with open questions, by name: the inbox."""
        return self._each(
            listed_questions(without_nothing({"graph": graph}), limit, self._patience)
        )

    def follow(
        self, thread: str, *, after: int | str = 0, emitted: bool = False, stay: bool = False
    ) -> Iterator[ClientEvent]:
        """A thread's states from a seq on, then those to come, until its run stops.

        None is missed and none comes twice, however often the connection is lost. ``after`` may
        also be the ``id`` of an event. ``emitted`` adds the values nodes emit from now on; only
        those emitted with ``keep`` are replayed. With ``stay`` it does not end when the run stops,
        but has an event ``stopped``. After the thread is deleted, ``ThreadNotFound``.
        """
        return self._each(followed(thread, after, emitted, stay, self._patience))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _document(self, kind: type[D], request: HttpCall) -> D:
        return self._run(document(kind, request, self._patience))

    def _run(self, steps: Steps[T]) -> T:
        answer: Any = None
        with ExitStack() as held:
            transport = _BlockingTransport(self._http, held)
            while True:
                try:
                    effect = steps.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = transport.perform(effect)

    def _each(self, steps: Steps[None]) -> Iterator[Any]:
        answer: Any = None
        with ExitStack() as held:
            transport = _BlockingTransport(self._http, held)
            while True:
                try:
                    effect = steps.send(answer)
                except StopIteration:
                    return
                answer = None
                if isinstance(effect, Yielded):
                    yield effect.value
                else:
                    answer = transport.perform(effect)


class _BlockingTransport:
    def __init__(self, http: httpx.Client, held: ExitStack) -> None:
        self._http, self._held = http, held
        self._parts: Iterator[bytes] = iter(())

    def perform(self, effect: ClientEffect) -> HttpAnswer | LostResponse | bytes | None:
        try:
            if isinstance(effect, HttpCall):
                return self._send(effect)
            if isinstance(effect, Pause):
                time.sleep(effect.seconds)
                return None
            return next(self._parts, b"")
        except httpx.TransportError as error:
            return LostResponse(f"{type(error).__name__}: {error}")

    def _send(self, request: HttpCall) -> HttpAnswer:
        self._held.close()
        response = self._held.enter_context(self._http.stream(**arguments_of(request)))
        if request.streams and response.status_code == 200:
            self._parts = response.iter_bytes()
            return HttpAnswer(200, b"")
        return HttpAnswer(response.status_code, response.read())
