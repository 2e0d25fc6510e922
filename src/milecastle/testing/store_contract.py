"""The store contract, for every store, ours and yours.

Fill the two hooks and give the class a name that pytest collects::

    class TestMyStore(StoreContract):
        def open_store(self) -> Store:
            return MyStore(...)

        def reopen(self, store: Store) -> Store:
            return MyStore(...)  # on the same data, as after a crash

Each test names the rule of ``milecastle.ports.store`` that it checks.
"""

from __future__ import annotations

from milecastle.testing.contract_appending import AppendingClauses, RacingClauses
from milecastle.testing.contract_keeping import KeepingClauses
from milecastle.testing.contract_listing import ListingClauses, RecencyClauses
from milecastle.testing.contract_reading import FollowingClauses, ReadingClauses
from milecastle.testing.contract_removing import RemovingClauses
from milecastle.testing.contract_tags import TagClauses
from milecastle.testing.contract_tenants import TenantClauses


class StoreContract(
    AppendingClauses,
    KeepingClauses,
    ReadingClauses,
    ListingClauses,
    RecencyClauses,
    FollowingClauses,
    TagClauses,
    TenantClauses,
    RemovingClauses,
    RacingClauses,
):
    """Every clause, for one store. Needs ``open_store`` and ``reopen``."""


def clauses() -> list[str]:
    return sorted(name for name in dir(StoreContract) if name.startswith("test_"))
