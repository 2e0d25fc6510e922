"""What the command line and the server do with threads that LangGraph stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from milecastle.integrations.langgraph import MilecastleSaver
from tests.process.langgraph_kills import checkpoint_of
from tests.unit.cli.commands import Desk
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api, token_of

STEPS = 150


def fill(url: str) -> None:
    """Store a thread with so many steps, the last of which ends its run."""
    with MilecastleSaver(url) as saver:
        config: Any = {"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}
        for step in range(STEPS):
            checkpoint, versions = checkpoint_of(step)
            if step == STEPS - 1:
                del checkpoint["channel_values"]["branch:to:work"]
            config = saver.put(config, checkpoint, {"source": "loop", "step": step}, versions)
            saver.put_writes(config, [("items", [step])], f"task-{step}")


def test_verbs_show_and_shorten_threads_of_langgraph(tmp_path: Path) -> None:
    """Fails if pruning drops hidden channels: then the checkpoint at the cut is not listed."""
    url = f"sqlite:///{tmp_path}/chats.db"
    fill(url)
    desk = Desk(tmp_path)
    assert "chat" in desk.out("ls", "--store", url)
    assert "completed" in desk.out("ls", "--store", url)
    assert str(STEPS - 1) in desk.out("show", "chat", "--store", url)
    assert len(desk.out("history", "chat", "--limit", "7", "--store", url).splitlines()) >= 7
    with MilecastleSaver(url) as saver:
        before: list[Any] = [*saver.list({"configurable": {"thread_id": "chat"}})]
    desk.out("gc", "--keep-last", "102", "--store", url)
    with MilecastleSaver(url) as saver:
        after: list[Any] = [*saver.list({"configurable": {"thread_id": "chat"}})]
    assert len(after) == 51  # of 102 entries, every other is a checkpoint; the first is the cut
    newest = len(after) - 1
    assert after[:newest] == before[:newest]
    oldest, then = after[newest], before[newest]
    assert oldest.checkpoint == then.checkpoint
    assert oldest.metadata == then.metadata


def test_server_shows_threads_of_langgraph(tmp_path: Path) -> None:
    api = Api(tmp_path)
    try:
        fill(f"sqlite:///{tmp_path}/runs.db")
        assert api.ask("GET", "/v1/threads/chat").json()["status"] == "completed"
        browser = Browser(api).log_in(token_of("default"))
        assert "chat" in browser.ask("GET", "/threads").text
        assert "items" in browser.ask("GET", "/threads/chat").text
    finally:
        api.close()
