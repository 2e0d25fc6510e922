"""What a client reads is what the server sends; what it does not know is left out."""

from __future__ import annotations

import msgspec
import pytest

from milecastle.client import documents as known
from milecastle.client.effects import HttpAnswer
from milecastle.client.event_reader import EventReader
from milecastle.client.refusals import error_of
from milecastle.errors import RequestRefused, ResumeRefused, RunError
from milecastle.server.documents import InboxDocument, InboxLine
from milecastle.server.problems import ProblemDocument
from milecastle.views import documents as sent

PAIRS: list[tuple[type[msgspec.Struct], type[msgspec.Struct]]] = [
    (known.SubmittedRun, sent.SubmitDocument),
    (known.SentMessage, sent.SendDocument),
    (known.AskedQuestion, sent.QuestionLine),
    (known.FailureInfo, sent.FailureLine),
    (known.RunResult, sent.RunDocument),
    (known.CheckpointInfo, sent.CheckpointLine),
    (known.ThreadSnapshot, sent.ShowDocument),
    (known.ThreadSummary, sent.ThreadLine),
    (known.WaitingThread, InboxLine),
    (known.Cancelled, sent.CancelDocument),
    (known.ThreadsPage, sent.LsDocument),
    (known.InboxPage, InboxDocument),
    (known.HistoryPage, sent.HistoryDocument),
    (known.ProblemAnswer, ProblemDocument),
]


@pytest.mark.parametrize(("own", "theirs"), PAIRS)
def test_every_field_is_one_of_the_servers(
    own: type[msgspec.Struct], theirs: type[msgspec.Struct]
) -> None:
    """Seen to fail with ``reason`` of ``ThreadSnapshot`` called ``why``."""
    assert set(own.__struct_fields__) <= set(theirs.__struct_fields__)


@pytest.mark.parametrize(("own", "theirs"), PAIRS)
def test_field_of_a_newer_server_is_left_out(
    own: type[msgspec.Struct], theirs: type[msgspec.Struct]
) -> None:
    assert not own.__struct_config__.forbid_unknown_fields


def test_events_are_read_whatever_their_parts_are() -> None:
    """Broken on purpose: lines were split at U+2028 as well, and the event was cut in two."""
    emitted = '{"run_id":"r","value":"one\u2028two"}'
    text = (
        f": hello\n\nid: 4\nevent: emit\ndata: {emitted}\n\nevent: newer\ndata: {{}}\n\n".encode()
    )
    for size in (1, 7, len(text)):
        reader = EventReader()
        found = [
            event
            for place in range(0, len(text), size)
            for event in reader.read(text[place : place + size])
        ]
        assert [(one.type, one.id, one.update) for one in found] == [("emit", "4", "one\u2028two")]


def test_refusal_has_its_class_and_the_attributes_of_it() -> None:
    """Broken before: the text of an ``ExecutionError`` that came over HTTP was an error itself."""

    def error(**problem: object) -> Exception:
        return error_of(HttpAnswer(409, msgspec.json.encode(problem)))

    refused = error(code="MC301", detail="it cannot", reasons=["node 'a' was removed"])
    assert isinstance(refused, ResumeRefused)
    assert refused.reasons == ("node 'a' was removed",)
    failed = error(code="MC201", detail="it failed")
    assert isinstance(failed, RunError)
    assert (failed.thread, failed.run_id) == (None, None)
    assert "it failed" in str(failed)
    unknown = error_of(HttpAnswer(418, b"<html>"))
    assert isinstance(unknown, RequestRefused)
    assert "is it a Milecastle server?" in str(unknown)
