"""The logging observer: one event is one line."""

from __future__ import annotations

import logging

import pytest

from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.observers.logs import LoggingObserver

NAME = "ok\x1b[2K\x9b\u202e\nERROR forged log line"


def test_a_name_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Seen to fail with names logged as they are."""
    caplog.set_level(logging.DEBUG, "milecastle")
    event = Event(
        type="node_failed",
        run_id="r",
        key=ThreadKey("acme", NAME),
        node=NAME,
        step=1,
        data={"error": NAME},
    )
    LoggingObserver().on_event(event)
    (line,) = caplog.messages
    assert line.isprintable()
    assert line.count("\\nERROR forged log line") == 3
