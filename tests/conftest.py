"""What every test gets: Hypothesis profiles, and nothing else.

`HYPOTHESIS_PROFILE` picks one: `quick` for the desk, `ci` (repeatable; the default when `CI` is
set), `proof` for the long form.
"""

from __future__ import annotations

import os

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
