"""The simulation of many databases, in cases whose answer is known without it."""

from __future__ import annotations

import pytest

from benchmarks.scale_simulation import Costs, Fleet, rate

COSTS = Costs(client=0.003, server=0.002, flush=[0.005])


def test_one_client_takes_what_a_step_takes() -> None:
    """Fails if a step leaves out its client, its server or its flush."""
    assert rate(COSTS, Fleet(clients=1, databases=1, server_cores=2)) == pytest.approx(100)


def test_cores_are_the_limit_of_many_clients() -> None:
    """Two cores do 400 steps of 5 ms a second. Fails if a core does two things at once."""
    costs = Costs(client=0.003, server=0.002, flush=[0.0001])
    fleet = Fleet(clients=50, databases=1, server_cores=2)
    assert rate(costs, fleet) == pytest.approx(400, rel=0.01)


def test_who_comes_during_a_flush_waits_for_the_next() -> None:
    """Two groups take turns on a log: two flushes for a step. Fails if a flush takes in others."""
    costs = Costs(client=0.0001, server=0.0001, flush=[0.01])
    fleet = Fleet(clients=40, databases=1, server_cores=100)
    assert rate(costs, fleet) == pytest.approx(40 / 0.02, rel=0.05)


def test_each_database_has_its_own_log() -> None:
    """A client alone on its log never waits for a flush of others. Fails if all share one log."""
    costs = Costs(client=0.0001, server=0.0001, flush=[0.01])
    one, eight = (rate(costs, Fleet(8, databases, server_cores=8)) for databases in (1, 8))
    assert eight == pytest.approx(one * 2, rel=0.05)


def test_flushes_of_one_disk_disturb_each_other() -> None:
    """Fails if a disk does not count the flushes that go on."""
    costs = Costs(client=0.0001, server=0.0001, flush=[0.01, 0.02])
    shared, alone = (rate(costs, Fleet(2, 2, server_cores=4, disks=disks)) for disks in (1, 2))
    assert shared < alone * 0.7


def test_clients_may_have_their_own_cores() -> None:
    """Fails if clients and servers always share."""
    costs = Costs(client=0.003, server=0.002, flush=[0.0001])
    fleet = Fleet(clients=50, databases=1, server_cores=1, client_cores=100)
    assert rate(costs, fleet) == pytest.approx(500, rel=0.01)
