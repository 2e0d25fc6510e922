"""Histories of claims on one store: who gets what, if more is due than a claim may take.

Tenants, graphs, limits, the size of claims and what ends in between are random. A *group* is a
tenant's threads of one graph. It is *open* if no limit covers it. Every open group always has
something due, so each must get its share, and its first thread soon, whatever limits others have.
Threads may have limit keys: those of an open group share what it gets, and each key of a tenant
with a limit by key is served in the end, however many others are at that limit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from milecastle import App
from milecastle.app.runs.ownership import current_owner
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit, graph_of
from milecastle.ports.workers import WorkerInfo
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.model.graphs import GRAPHS, State, app_of, input_of

__all__ = ["claim_history"]

CLAIMS = 100
Group = tuple[str, str]
"""Graph and tenant."""


class Claiming:
    """One history. ``stores`` are the same store, opened by one worker each."""

    def __init__(self, seed: int, stores: Sequence[ClaimStore]) -> None:
        self.random = random = Random(seed)
        self.stores = stores
        self.wrong: list[str] = []
        graphs = GRAPHS[: random.choice((1, 1, 2))]
        tenants = [f"tenant{number:02}" for number in range(random.choice((1, 2, 6, 20)))]
        full = [f"full{number:02}" for number in range(random.choice((0, 0, 3, 25)))]
        self.size = random.choice((1, 1, 2, 3, 10))
        self.limits = [Limit(tenant=name, concurrency=random.choice((0, 1))) for name in full]
        if random.random() < 0.4:
            self.limits.append(Limit(graph="another", concurrency=5))
        if random.random() < 0.2 and tenants:
            kinds = (
                Limit(tenant=tenants[0], concurrency=1),
                Limit(tenant=tenants[0], rate=3, period=3600.0),
            )
            self.limits.append(random.choice(kinds))
        most = 25 if len(tenants) < 3 and not full else 5
        self.customers = random.choice((0, 0, 1, 3, most))
        if self.customers and tenants:
            by_key = (
                Limit(tenant=tenants[-1], key="customer", concurrency=1),
                Limit(tenant=tenants[-1], key="customer", rate=2, period=3600.0),
                Limit(graph="another", key="customer", concurrency=1),
            )
            self.limits.append(random.choice(by_key))
        self.apps: dict[str, App[State]] = {name: app_of(name, stores[0]) for name in graphs}
        self.lanes = [app.runner.lane for app in self.apps.values()]
        self.groups = [(graph, tenant) for graph in graphs for tenant in [*tenants, *full]]
        self.open = [
            group for group in self.groups if not any(_covers(each, group) for each in self.limits)
        ]
        self.got: Counter[Group] = Counter()
        self.first: dict[Group, int] = {}
        self.got_by_key: Counter[tuple[str, str, str]] = Counter()
        self.running: deque[tuple[str, str, ThreadKey]] = deque()
        self.customer: dict[ThreadKey, str] = {}
        self.priorities: dict[tuple[str, ThreadKey], int] = {}

    def run(self) -> list[str]:
        """Submit, claim a hundred times, and judge."""
        depth = self.size + 1
        for limit in self.limits:
            self.stores[0].set_limit(limit)
        for graph, app in self.apps.items():
            for number in range(depth * max(1, self.customers)):
                priority = 0 if self.customers else self.random.choice((0, 0, 7))
                customer = f"customer=c{number % self.customers}" if self.customers else ""
                keys = {"customer": customer.partition("=")[2]} if customer else None
                inputs: Any = {
                    ThreadKey(tenant, f"{graph}{number}"): input_of("x", [])
                    for group, tenant in self.groups
                    if group == graph
                }
                app.submit_many(inputs, priority=priority, keys=keys)
                self.customer |= dict.fromkeys(inputs, customer)
                self.priorities |= {(graph, key): priority for key in inputs}
        workers = [f"worker{number}" for number in range(len(self.stores))]
        for worker, store in zip(workers, self.stores, strict=True):
            store.beat(
                WorkerInfo(id=worker, owner=current_owner(), lanes=tuple(self.lanes), started_at=0)
            )
        for turn in range(CLAIMS):
            number = self.random.randrange(len(self.stores))
            self._claim(turn, workers[number], self.stores[number])
        return self._judge()

    def _claim(self, turn: int, worker: str, store: ClaimStore) -> None:
        found = store.claim(worker, self.lanes, limit=self.size)
        if len(found) > self.size:
            self.wrong.append("a claim took more than it asked for")
        for line in found:
            group = (graph_of(line.lane), line.key.tenant)
            self.got[group] += 1
            self.got_by_key[*group, line.limit_key] += 1
            self.first.setdefault(group, turn)
            self.running.append((worker, graph_of(line.lane), line.key))
        self._check_priorities([(graph_of(line.lane), line.key) for line in found])
        for limit in self.limits:
            covered = Counter(
                self.customer[key] if limit.key else ""
                for _, graph, key in self.running
                if _covers(limit, (graph, key.tenant))
            )
            most = max(covered.values(), default=0)
            if limit.concurrency is not None and most > limit.concurrency:
                self.wrong.append(f"a limit was exceeded: {most} run under {limit}")
            if limit.rate is not None:
                started = Counter[str]()
                for (graph, tenant, key), got in self.got_by_key.items():
                    if _covers(limit, (graph, tenant)):
                        started[key if limit.key else ""] += got
                count = max(started.values(), default=0)
                if count > limit.rate:
                    self.wrong.append(f"a rate was exceeded: {count} of {limit}")
        self._end_some()

    def _check_priorities(self, claimed: Sequence[tuple[str, ThreadKey]]) -> None:
        """Of one tenant's graph, those with the highest priority come first.

        A store may stop counting them: then a claim that got some of them got others as well.
        """
        taken = {(graph, key) for _, graph, key in self.running}
        left: dict[Group, int] = {}
        best: dict[Group, int] = {}
        for (graph, key), priority in self.priorities.items():
            highest = best if (graph, key) in claimed else left
            if highest is best or (graph, key) not in taken:
                group = (graph, key.tenant)
                highest[group] = max(priority, highest.get(group, -100))
        for group, priority in best.items():
            if priority < left.get(group, -100):
                self.wrong.append(f"{group} was claimed without those of the highest priority")

    def _end_some(self) -> None:
        """What is open ends at once and is due again; what is limited, now and then."""
        kept: deque[tuple[str, str, ThreadKey]] = deque()
        for worker, graph, key in self.running:
            if (graph, key.tenant) in self.open or self.random.random() < 0.05:
                store = self.stores[int(worker[6:])]
                if not store.give_back(worker, key):
                    self.wrong.append(f"{key.thread} was claimed, and the worker has it not")
            else:
                kept.append((worker, graph, key))
        self.running = kept

    def _judge(self) -> list[str]:
        open_groups = len(self.open)
        taken = sum(self.got[group] for group in self.open)
        shut = {limit.tenant for limit in self.limits if limit.concurrency == 0}
        claimable = sum(tenant not in shut for _, tenant in self.groups)
        bound = 2 * (-(-claimable // self.size)) + 2
        for group in self.open:
            first = self.first.get(group, CLAIMS)
            if first >= bound * len(self.stores):
                self.wrong.append(
                    f"progress: {group} was due and allowed, and got nothing for {first} claims "
                    f"of {self.size} ({open_groups} open groups, {len(self.limits)} limits)"
                )
            elif self.got[group] < taken / open_groups / 2:
                self.wrong.append(
                    f"fairness: {group} got {self.got[group]} of {taken} over {CLAIMS} claims of "
                    f"{self.size}; {open_groups} groups share them ({len(self.limits)} limits)"
                )
        self._judge_keys()
        return self.wrong

    def _judge_keys(self) -> None:
        for graph, tenant in self.groups if self.customers else ():
            got = {
                number: self.got_by_key[graph, tenant, f"customer=c{number}"]
                for number in range(self.customers)
            }
            total = sum(got.values())
            if (graph, tenant) in self.open and min(got.values()) < total // self.customers // 2:
                self.wrong.append(f"fairness: the keys of {(graph, tenant)} got {got}")
            turns = total // self.customers
            is_by_key = any(each.key and each.tenant == tenant for each in self.limits)
            if is_by_key and turns > 1 and not all(got.values()):
                self.wrong.append(f"progress: a key of {(graph, tenant)} starves: {got}")


def _covers(limit: Limit, group: Group) -> bool:
    return limit.graph in ("", group[0]) and limit.tenant in ("", group[1])


def claim_history(seed: int, kind: str, where: str = "") -> list[str]:
    """Make one history on a new store of a kind; ``where`` is a folder or a URL."""
    stores: list[Any]
    if kind == "memory":
        stores = [MemoryStore()]
    elif kind == "sqlite":
        path = Path(where) / f"claims{seed}.db"
        stores = [SqliteStore(path, synchronous="normal") for _ in range(1 + seed % 2)]
    else:
        from milecastle.stores.opening import find_store

        stores = [find_store(where) for _ in range(1 + seed % 2)]
    try:
        return Claiming(seed, stores).run()
    finally:
        for store in stores:
            store.close()
