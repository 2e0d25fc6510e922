"""What every test gets: Hypothesis profiles, and a marker ``no_cover`` that takes effect.

`HYPOTHESIS_PROFILE` picks one: `quick` for the desk, `ci` (repeatable; the default when `CI` is
set), `proof` for the long form.
"""

from __future__ import annotations

import os

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


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop the coverage that pytest-cov starts in a worker as if it were the main process.

    It starts another one for the worker afterwards, and would trace the tests marked ``no_cover``
    with the first, whose data nobody reads: they took four times as long.
    """
    plugin = session.config.pluginmanager.get_plugin("_cov")
    if hasattr(session.config, "workerinput") and plugin and plugin.cov_controller:
        plugin.cov_controller.cov.stop()
