"""What every test gets: Hypothesis profiles, and a limit of time.

`HYPOTHESIS_PROFILE` picks one: `quick` for the desk, `ci` (repeatable; the default when `CI` is
set), `proof` for the long form.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Generator
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code; a busy CI machine must not fail a good test.
settings.register_profile("quick", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("proof", deadline=None, max_examples=5_000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "quick")
)

LIMIT = 300.0
"""How many seconds a test may take: five times the slowest. `just proof` sets none."""


if sys.platform != "win32":
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let no collection of garbage look at 16,000 collected tests again."""
    gc.collect()
    gc.freeze()


class HangingTest(BaseException):
    """A test took longer than the limit; not an `Exception`, so that no test catches it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, with the stacks of all threads, instead of the whole run."""

    def fail(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(all_threads=True)
        raise HangingTest(f"{item.nodeid} took longer than {LIMIT:.0f} s")

    if not os.environ.get("CI") or item.get_closest_marker("slow") or sys.platform == "win32":
        return (yield)
    earlier = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
