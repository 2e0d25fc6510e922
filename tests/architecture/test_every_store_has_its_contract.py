"""Every store runs the contract."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from milecastle.testing import StoreContract

ROOT = Path(__file__).resolve().parents[2]
STORES = ROOT / "src" / "milecastle" / "stores"


def stores() -> list[str]:
    return sorted(path.parent.name for path in STORES.glob("*/__init__.py"))


def contract_tests(module: object) -> list[str]:
    """Return the test classes of a module that pytest collects and that run the contract."""
    return [
        name
        for name, thing in vars(module).items()
        if name.startswith("Test")
        and isinstance(thing, type)
        and issubclass(thing, StoreContract)
        and getattr(thing, "__test__", True)
    ]


def test_there_are_stores() -> None:
    assert "memory" in stores()


@pytest.mark.parametrize("store", stores())
def test_every_store_runs_the_contract(store: str) -> None:
    file = ROOT / "tests" / "contract" / f"test_{store}.py"
    assert file.is_file(), f"{store} has no contract test: write {file.relative_to(ROOT)}"
    module = importlib.import_module(f"tests.contract.test_{store}")
    assert contract_tests(module), f"{file.relative_to(ROOT)} does not run StoreContract"


def test_a_class_that_is_not_the_contract_does_not_count() -> None:
    class TestOther:
        pass

    class TestHidden(StoreContract):
        __test__ = False

    class Holder:
        pass

    holder = Holder()
    vars(holder).update(TestOther=TestOther, TestHidden=TestHidden)
    assert contract_tests(holder) == []
