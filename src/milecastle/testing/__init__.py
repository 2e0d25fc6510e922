"""What tests stand on: the store contract, the simulator, faulty stores, a manual clock."""

from typing import TYPE_CHECKING, Any

from milecastle.testing.clock import ManualClock
from milecastle.testing.crash import crash_everywhere
from milecastle.testing.crash_report import CrashMismatch, CrashReport, Mismatch
from milecastle.testing.faulty_stores import FailingStore, TornStore, Volatile, WrappedStore
from milecastle.testing.races import Races, race_in_tasks, race_in_threads
from milecastle.testing.recorded_step import run_step
from milecastle.testing.simulator import Crashed, CrashPoint, Simulator, Witness

if TYPE_CHECKING:
    from milecastle.testing.store_contract import StoreContract

__all__ = [
    "CrashMismatch",
    "CrashPoint",
    "CrashReport",
    "Crashed",
    "FailingStore",
    "ManualClock",
    "Mismatch",
    "Races",
    "Simulator",
    "StoreContract",
    "TornStore",
    "Volatile",
    "Witness",
    "WrappedStore",
    "crash_everywhere",
    "race_in_tasks",
    "race_in_threads",
    "run_step",
]


def __getattr__(name: str) -> Any:
    """Bring in the contract when it is asked for: it alone needs pytest."""
    if name != "StoreContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys

    import pytest

    parts = ("appending", "keeping", "listing", "racing", "reading", "removing", "tenants")
    names = {f"{__name__}.contract_{part}" for part in parts}
    pytest.register_assert_rewrite(*(names - sys.modules.keys()))
    from milecastle.testing.store_contract import StoreContract

    return StoreContract
