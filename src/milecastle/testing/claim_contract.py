"""The contract of claims: for every store workers share.

Fill the two hooks and give the class a name that pytest collects::

    class TestClaimsOfMyStore(ClaimContract):
        def open_store(self) -> ClaimStore:
            return MyStore(...)

        def reopen(self, store: Store) -> ClaimStore:
            return MyStore(...)  # on the same data, as after a crash

Each test names the rule of ``milecastle.ports.claims`` that it checks. ``StoreContract`` checks the
rest of the store.
"""

from __future__ import annotations

from milecastle.testing.contract_claiming import ClaimingClauses
from milecastle.testing.contract_inputs import InputClauses
from milecastle.testing.contract_limit_keys import LimitKeyClauses
from milecastle.testing.contract_limits import LimitClauses
from milecastle.testing.contract_workers import WorkerClauses


class ClaimContract(ClaimingClauses, InputClauses, LimitClauses, LimitKeyClauses, WorkerClauses):
    """Every clause on claims, for one store. Needs ``open_store`` and ``reopen``."""


def claim_clauses() -> list[str]:
    return sorted(name for name in dir(ClaimContract) if name.startswith("test_"))
