"""What every test gets: Hypothesis profiles, a limit of time, and what is traced for coverage.

`HYPOTHESIS_PROFILE` picks one: `quick` for the desk, `ci` (repeatable; the default when `CI` is
set), `proof` for the long form.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
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

TRACED = {
    "acceptance": r"(?!.*(jsonl|postgres)|scenarios/.*sqlite)",
    "contract": "(?!test_broken)",
    "migration": "",
    "process": "test_(postgres|sharded)_(?!chaos|crashes|failover|workers)",
    "recovery": r"test_(crash_everywhere(\.|_with_[dm])|jsonl|sqlite_(?!damage|truncation))",
    "stateful": "test_thread_status",
    "unit": "(?!app/test_typing|cli/test_init|drivers/test_garbage)",
}
"""Which tests of a folder are traced. The others repeat these on other stores, or more often."""

LIMIT = 300.0
"""How many seconds a test may take: five times the slowest. `just proof` sets none."""


os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))


class HangingTest(BaseException):
    """A test took longer than the limit; not an `Exception`, so that no test catches it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, with the stacks of all threads, instead of the whole run."""

    def fail(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(all_threads=True)
        raise HangingTest(f"{item.nodeid} took longer than {LIMIT:.0f} s")

    if not os.environ.get("CI") or item.get_closest_marker("slow"):
        return (yield)
    earlier = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not traced: tracing a test takes two to four times as long."""
    for item in items:
        folder, _, name = item.nodeid.removeprefix("tests/").partition("/")
        if folder not in TRACED or not re.match(TRACED[folder], name):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop the coverage that pytest-cov starts in a worker as if it were the main process.

    It starts another one for the worker afterwards, and would trace the tests marked ``no_cover``
    with the first, whose data nobody reads: they took four times as long.
    """
    plugin = session.config.pluginmanager.get_plugin("_cov")
    if hasattr(session.config, "workerinput") and plugin and plugin.cov_controller:
        plugin.cov_controller.cov.stop()
