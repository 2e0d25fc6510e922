"""Messages on the command line: sent, listed and discarded."""

from __future__ import annotations

from tests.unit.cli.commands import Desk


def test_messages_are_sent_listed_and_discarded(desk: Desk) -> None:
    """Fails if an option is not passed on, or the value is not read as JSON."""
    desk.start("a")
    found = desk.document(
        "send", "a", '{"id": 7}', "--topic", "orders", "--key", "k", "--by", "ann", "--app", "demo"
    )
    assert (found.thread, found.number, found.reused) == ("a", 1, False)
    again = ("send", "a", "x", "--topic", "orders", "--key", "k", "--app", "demo")
    assert "message 1 was sent before" in desk.out(*again)
    assert "message 2 is stored" in desk.out("send", "a", "two words", "--app", "demo")
    lines = desk.document("mailbox", "a", "--app", "demo").messages
    assert [(one.number, one.topic, one.value) for one in lines] == [
        (1, "orders", {"id": 7}),
        (2, "", "two words"),
    ]
    assert (lines[0].key, lines[0].by) == ("k", "ann")
    assert '{"id": 7}' in desk.out("mailbox", "a", "--topic", "orders", "--app", "demo")
    left = desk.document("mailbox", "a", "--discard", "1", "--app", "demo").messages
    assert [one.number for one in left] == [2]
    assert "no unread message 1" in desk.err(
        "mailbox", "a", "--discard", "1", "--app", "demo", code=2
    )
    assert desk.out("mailbox", "a", "--topic", "none", "--app", "demo").strip() == (
        "no unread messages"
    )
