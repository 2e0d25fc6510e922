"""The client, for an event loop: the methods of ``Client``, performed by another transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx

from milecastle.client.blocking import Client
from milecastle.client.calls import document
from milecastle.client.documents import Answered
from milecastle.client.effects import (
    ClientEffect,
    HttpAnswer,
    HttpCall,
    LostResponse,
    Pause,
    Steps,
    Yielded,
)
from milecastle.client.wire import arguments_of, settings_for

T = TypeVar("T")
D = TypeVar("D", bound=Answered)
P = ParamSpec("P")


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """The same method: it hands steps to ``self``, which runs them on the event loop."""
    return cast("Callable[Concatenate[AsyncClient, P], Awaitable[T]]", method)


def _iterated(
    method: Callable[Concatenate[Client, P], Iterator[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    return cast("Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]", method)


class AsyncClient:
    """``Client`` for an event loop: the same methods, to be awaited or iterated over."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience: float = 60.0,
        http: Mapping[str, Any] | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**settings_for(url, token, http))
        self._patience = patience

    submit = _awaited(Client.submit)
    answer = _awaited(Client.answer)
    send = _awaited(Client.send)
    retry = _awaited(Client.retry)
    cancel = _awaited(Client.cancel)
    wait = _awaited(Client.wait)
    state = _awaited(Client.state)
    history = _iterated(Client.history)
    threads = _iterated(Client.threads)
    questions = _iterated(Client.questions)
    follow = _iterated(Client.follow)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _document(self, kind: type[D], request: HttpCall) -> D:
        return await self._run(document(kind, request, self._patience))

    async def _run(self, steps: Steps[T]) -> T:
        answer: Any = None
        async with AsyncExitStack() as held:
            transport = _LoopTransport(self._http, held)
            while True:
                try:
                    effect = steps.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = await transport.perform(effect)

    async def _each(self, steps: Steps[None]) -> AsyncIterator[Any]:
        answer: Any = None
        async with AsyncExitStack() as held:
            transport = _LoopTransport(self._http, held)
            while True:
                try:
                    effect = steps.send(answer)
                except StopIteration:
                    return
                answer = None
                if isinstance(effect, Yielded):
                    yield effect.value
                else:
                    answer = await transport.perform(effect)


class _LoopTransport:
    """Performs the effects of one call; it may have a stream open."""

    def __init__(self, http: httpx.AsyncClient, held: AsyncExitStack) -> None:
        self._http, self._held = http, held
        self._parts: AsyncIterator[bytes] | None = None

    async def perform(self, effect: ClientEffect) -> HttpAnswer | LostResponse | bytes | None:
        try:
            if isinstance(effect, HttpCall):
                return await self._send(effect)
            if isinstance(effect, Pause):
                await asyncio.sleep(effect.seconds)
                return None
            return b"" if self._parts is None else await anext(self._parts, b"")
        except httpx.TransportError as error:
            return LostResponse(f"{type(error).__name__}: {error}")

    async def _send(self, request: HttpCall) -> HttpAnswer:
        await self._held.aclose()
        response = await self._held.enter_async_context(self._http.stream(**arguments_of(request)))
        if request.streams and response.status_code == 200:
            self._parts = response.aiter_bytes()
            return HttpAnswer(200, b"")
        return HttpAnswer(response.status_code, await response.aread())
