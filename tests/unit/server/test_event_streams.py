"""A stream of events, for readers that are slow or leave, and for texts that end with an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from milecastle import Unavailable
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.server import event_stream, events
from milecastle.server.event_stream import ABORT, EventStreamResponse
from milecastle.views import values


async def texts(*found: bytes | Exception) -> AsyncGenerator[bytes, None]:
    for one in found:
        if isinstance(one, Exception):
            raise one
        yield one


def sent(*found: bytes | Exception, slow: bool = False) -> tuple[bytes, bool]:
    """What a reader gets, and whether its connection was ended at once."""
    got, aborted = bytearray(), asyncio.Event()

    async def send(message: Any) -> None:
        if slow and message.get("body", b"").startswith(b"event"):
            await asyncio.sleep(600)
        got.extend(message.get("body", b""))

    async def receive() -> Any:
        await aborted.wait()
        return {"type": "http.disconnect"}

    async def use() -> None:
        response = EventStreamResponse(asyncio.Event(), texts(*found))
        scope: dict[str, Any] = {"type": "http", "extensions": {ABORT: aborted.set}}
        async with asyncio.timeout(60):
            await response(scope, receive, send)

    asyncio.run(use())
    return bytes(got), aborted.is_set()


def test_texts_are_sent_and_silence_is_a_comment() -> None:
    got, aborted = sent(b"event: a\n\n", b"", b"event: b\n\n")
    assert got == b": milecastle\n\nevent: a\n\n: still here\n\nevent: b\n\n"
    assert not aborted


def test_slow_reader_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it is waited for: this would take ten minutes."""
    monkeypatch.setattr(event_stream, "SLOW", 0.05)
    got, aborted = sent(b"event: a\n\n", slow=True)
    assert got == b": milecastle\n\n"
    assert aborted


@pytest.mark.parametrize(("error", "lines"), [(Unavailable("away"), 0), (RuntimeError("a 7"), 1)])
def test_stream_that_fails_ends(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader comes back. Fails if the text of an unknown error, maybe a value, is logged."""
    caplog.set_level(logging.ERROR)
    assert sent(b"event: a\n\n", error)[0].endswith(b"event: a\n\n")
    assert len(caplog.records) == lines
    assert "a 7" not in caplog.text


@pytest.mark.parametrize("name", ["emit", "missed"])
def test_what_has_no_checkpoint_has_its_own_name(name: Any) -> None:
    event: Event[Any] = Event(
        type=name, run_id="r", time=1, node="n", task="n", step=1, data={"count": 2}
    )
    found, document = events._described(event)  # pyright: ignore[reportPrivateUsage]
    assert found == name
    assert getattr(document, "run_id", None) == "r"


def unchanged(place: str, value: Any) -> Any:
    return value


@pytest.mark.parametrize(("hook", "most"), [(None, 1), (unchanged, 2)])
def test_values_of_an_event_are_converted_to_json_once(
    hook: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a hook returns, once more. They were converted 3 times, with a hook 4 times."""
    converted: list[Any] = []
    plain = values.plain

    def counting(value: Any) -> Any:
        converted.extend([value] if value == "leaf" else [])
        return plain(value)

    monkeypatch.setattr(values, "plain", counting)
    key = ThreadKey("default", "t")
    service: Any = SimpleNamespace(redact=hook)
    followed = events._UnservedThread(service, key)  # pyright: ignore[reportPrivateUsage]
    event: Event[Any] = Event(
        type="state",
        run_id="r",
        key=key,
        step=1,
        seq=1,
        time=0,
        state={"n": {"items": ["leaf"]}},
        data={"source": "step", "nodes": ("a",), "next": ()},
    )
    text = followed._text(event)  # pyright: ignore[reportPrivateUsage]
    assert b'"state": {"n": {"items": ["leaf"]}}' in text
    assert len(converted) == most
