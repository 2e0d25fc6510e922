"""What does not work on Windows is refused there, with an error that says so."""

from __future__ import annotations

import asyncio
import sys

import pytest
from click.testing import CliRunner

from milecastle import InvalidRequest
from milecastle.cli.main import cli
from milecastle.fleet.worker import Worker
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import line, note


@pytest.mark.parametrize("verb", ["worker", "dev"])
def test_verb_that_does_not_work_on_windows_says_so(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails without the check: NotImplementedError of the event loop, or of pass_fds."""
    monkeypatch.setattr(sys, "platform", "win32")
    found = CliRunner().invoke(cli, [verb, "orders:app"])
    assert found.exit_code == 2
    assert f"milecastle {verb} is not supported on Windows" in found.output
    assert "use" in found.output or "run workers on Linux" in found.output


def test_worker_that_waits_for_signals_is_refused_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker([line(MemoryStore(), ("a", note("a")))])
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(InvalidRequest, match="not supported on Windows: run workers on Linux"):
        asyncio.run(worker.run_until_signalled())
