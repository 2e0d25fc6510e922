"""For tests: the store contract, the simulator, faulty stores, a manual clock."""

from typing import TYPE_CHECKING, Any

from milecastle.app.runs.answering import UNANSWERED
from milecastle.app.with_store import with_store
from milecastle.model.task import RunTask
from milecastle.ports.clock import Clock
from milecastle.testing.clock import ManualClock
from milecastle.testing.crash import crash_everywhere
from milecastle.testing.crash_report import CrashMismatch, CrashReport, Mismatch
from milecastle.testing.faulty_stores import FailingStore, TornStore, Volatile, WrappedStore
from milecastle.testing.process import Crashed, CrashPoint, Witness
from milecastle.testing.races import Races, race_in_tasks, race_in_threads
from milecastle.testing.simulator import Simulator

if TYPE_CHECKING:
    from milecastle.testing.claim_contract import ClaimContract
    from milecastle.testing.contract_buckets import BucketContract
    from milecastle.testing.contract_mailbox import MailboxContract
    from milecastle.testing.contract_memory import MemoryContract
    from milecastle.testing.store_contract import StoreContract

__all__ = [
    "UNANSWERED",
    "BucketContract",
    "ClaimContract",
    "Clock",
    "CrashMismatch",
    "CrashPoint",
    "CrashReport",
    "Crashed",
    "FailingStore",
    "MailboxContract",
    "ManualClock",
    "MemoryContract",
    "Mismatch",
    "Races",
    "RunTask",
    "Simulator",
    "StoreContract",
    "TornStore",
    "Volatile",
    "Witness",
    "WrappedStore",
    "crash_everywhere",
    "race_in_tasks",
    "race_in_threads",
    "with_store",
]


_PARTS = (
    *("appending", "buckets", "claiming", "inputs", "keeping", "limit_keys", "limits"),
    *("listing", "mailbox", "memory", "reading", "removing", "tags", "tenants", "workers"),
)
_CONTRACTS = (
    *("BucketContract", "ClaimContract", "MailboxContract", "MemoryContract", "StoreContract"),
)


def __getattr__(name: str) -> Any:
    if name not in _CONTRACTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys

    import pytest

    names = {f"{__name__}.contract_{part}" for part in _PARTS}
    pytest.register_assert_rewrite(*(names - sys.modules.keys()))
    if name == "BucketContract":
        from milecastle.testing.contract_buckets import BucketContract

        return BucketContract
    if name == "ClaimContract":
        from milecastle.testing.claim_contract import ClaimContract

        return ClaimContract
    if name == "MailboxContract":
        from milecastle.testing.contract_mailbox import MailboxContract

        return MailboxContract
    if name == "MemoryContract":
        from milecastle.testing.contract_memory import MemoryContract

        return MemoryContract
    from milecastle.testing.store_contract import StoreContract

    return StoreContract
