"""Whatever is done to a store, in whatever order, a plain model agrees with it.

`MILECASTLE_STEPS` is the number of steps that each store is put through.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from milecastle.errors import StoreError
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.broken_stores import BROKEN_STORES, BrokenStore
from milecastle.testing.store_machine import store_machine

LENGTH = 30
STEPS = int(os.environ.get("MILECASTLE_STEPS", 200 * LENGTH))

Hooks = tuple[Callable[[], Store], Callable[[Store], Store]]
STORES: dict[str, Hooks] = {"memory": (MemoryStore, lambda store: store)}


def profile(steps: int) -> settings:
    return settings(
        max_examples=max(1, steps // LENGTH),
        stateful_step_count=LENGTH,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def as_after_a_crash(store: Store) -> Store:
    return store.crashed() if isinstance(store, BrokenStore) else store


@pytest.mark.parametrize("name", STORES)
def test_a_store_agrees_with_the_model(name: str) -> None:
    run_state_machine_as_test(store_machine(*STORES[name]), settings=profile(STEPS))


@pytest.mark.parametrize(
    "broken", [store for store in BROKEN_STORES if store.seen_by_model], ids=lambda s: s.__name__
)
def test_a_broken_store_disagrees_with_the_model(broken: type[BrokenStore]) -> None:
    sought = settings(profile(2_000 * LENGTH), derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, StoreError, pytest.fail.Exception)):
        run_state_machine_as_test(store_machine(broken, as_after_a_crash), settings=sought)
