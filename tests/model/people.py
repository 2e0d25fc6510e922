"""People: who decides which call is made next. One seed decides everything.

They use threads of some tenants and graphs, not always well: the same key again, an answer again
after its acknowledgement was lost, a deletion behind which inputs wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any
from zlib import crc32

from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.limits import Limit
from tests.model import callers
from tests.model.buckets import TAKE_ACTS, random_buckets
from tests.model.callers import Input, Plan
from tests.model.graphs import ACTS, GRAPHS, KIN_ACTS, MAIL_ACTS, TOPICS
from tests.model.history import PAST, Call, History, deletes, over
from tests.model.remembering import MEMORY_ACTS

__all__ = ["ROLLUP_AFTER", "People"]

BURSTS = ((1.0, None), (2.0, 3.0), (3600.0, 2.0))
"""``quiet`` and ``at_most`` of messages. Nobody waits for an hour of quiet."""


ROLLUP_AFTER = 3
"""With an archive, so that threads that wait have something to archive, too."""


class People:
    """Chooses calls. ``weights`` say how often each kind is made in this history."""

    def __init__(self, random: Random, history: History, acts: tuple[str, ...] = ACTS) -> None:
        self.random = random
        self.history = history
        self.archives = crc32(repr(random.getstate()).encode()) % 4 == 0
        """Drawn from nothing: histories without an archive are those their seeds gave before."""
        self.mails = random.random() < 0.5
        acts = (*acts, *MAIL_ACTS) if self.mails else acts
        self.has_kin = self.mails and random.random() < 0.5
        if self.has_kin:
            acts = (*acts, *KIN_ACTS) if random.random() < 0.5 else KIN_ACTS
        self.remembers, self.takes = random.random() < 0.25, random.random() < 0.12
        for own, has in ((MEMORY_ACTS, self.remembers), (TAKE_ACTS, self.takes)):
            acts = (*acts[: random.choice((0, len(acts)))], *own) if has else acts
        self.buckets = random_buckets(random) if self.takes else []
        history.hooks = self.hooks = random.random() < 0.12
        some = random.sample(acts, random.randint(1, min(5, len(acts))))
        self.acts = (*some, "stop1") if random.random() < 0.04 else tuple(some)
        tenants = [f"tenant{number}" for number in range(random.choice((1, 1, 2, 3)))]
        self.threads = [
            ThreadKey(tenant, f"{tenant[-1]}t{number}")
            for tenant in tenants
            for number in range(random.randint(1, 3))
        ]
        self.tenants = tenants
        history.names = {key.thread for key in self.threads}
        self.graphs = {key: random.choice(GRAPHS) for key in self.threads}
        self.invokes = {key for key in self.threads if random.random() < 0.3}
        self.inputs: dict[ThreadKey, list[Input]] = {key: [] for key in self.threads}
        self.unsure: list[Plan] = []
        self._count = 0
        self.pace, self.hurry, self.keyed = 1.2, 0.0, 0.7
        self.todos: dict[str, list[str]] = {}
        self.limits: dict[tuple[str, str, str], Limit] = {}

        def often(*values: int) -> int:
            return random.choice(values)

        self.weights = {
            "input": 10,
            "again": often(0, 0, 3, 6),
            "care": often(3, 6, 10),
            "look": often(1, 3, 6),
            "cancel": often(0, 0, 1, 2),
            "delete": often(0, 0, 1, 2),
            "retain": often(0, 0, 0, 1),
            "bulk": often(0, 0, 0, 1),
            "limit": often(0, 0, 2),
            "invoke": often(0, 2, 4),
            "wrong": 1,
        }
        self.debounce: tuple[float, float | None] = (0.0, None)
        if self.mails:
            self.weights |= {"send": often(4, 8), "mail": often(0, 2, 4)}
            self.debounce = random.choice(((0.0, None), *BURSTS))
        if self.has_kin:
            self.weights["emitted"] = often(2, 4, 8)
        if self.remembers:
            self.weights |= {"remember": often(1, 3), "recall": often(1, 3)}
        if self.archives:
            self.weights |= {"archive": often(4, 8), "restore": often(1, 4), "past": often(2, 4)}
            if not self.mails:  # pruning forgets marks, and where messages were applied
                self.weights["prune"] = often(0, 2, 4)
        if random.random() < 0.5:
            self._pair()
        if self.archives:
            self.threads, self.pace, self.hurry = self.threads[: often(1, 1, 2)], 1.2, 0.8

    def _pair(self) -> None:
        """Only two kinds of calls besides inputs, close together, about one or two threads."""
        kinds = self.random.sample([kind for kind in self.weights if kind != "input"], 2)
        self.weights = {kind: 6 * (kind in kinds) for kind in self.weights} | {"input": 8}
        if self.mails:
            self.weights["send"] += 6
        if self.archives:
            beside = ("restore", "delete", "restore" if self.mails else "prune")
            self.weights["archive"] += 6
            self.weights[self.random.choice(beside)] += 6
        self.threads = self.threads[: self.random.choice((1, 1, 2))]
        self.acts, self.pace, self.hurry = self.acts[:2], 2.4, 0.8
        self.keyed = self.random.choice((0.0, 0.5, 1.0))

    def crowd(self, count: int) -> None:
        """Many threads, whose nodes take long."""
        self.threads = [ThreadKey("tenant0", f"0t{number}") for number in range(count)]
        self.tenants, self.acts, self.mails = ["tenant0"], ("linger", "plain"), False
        self.remembers = self.hooks = self.history.hooks = self.archives = False
        self.invokes.clear()
        self.pace = 0.3
        self.graphs = dict.fromkeys(self.threads, GRAPHS[0])
        self.inputs = {key: [] for key in self.threads}
        self.history.names = {key.thread for key in self.threads}
        self.weights = dict.fromkeys(self.weights, 0) | {"input": 10, "look": 1, "wrong": 4}

    def forget(self) -> None:
        """The store has no long-term memory."""
        self.remembers = False
        self.acts = tuple(act for act in self.acts if act not in MEMORY_ACTS) or ("plain",)
        self.weights.update(dict.fromkeys({"remember", "recall"} & {*self.weights}, 0))

    def graph_of(self, key: ThreadKey) -> str:
        """The graph of a thread, a child or a delivery."""
        name = key.thread.removeprefix("delivery@@")
        default = name.partition("@")[0] if name != key.thread else GRAPHS[name[:5] == "child"]
        return self.graphs.get(key, default)

    def name(self) -> str:
        """A new name of an operation or an answer."""
        self._count += 1
        return f"o{self._count}"

    def choose(self) -> Plan:
        """The next call that somebody makes."""
        random = self.random
        if self.unsure and random.random() < 0.2:
            return self.unsure.pop(random.randrange(len(self.unsure)))
        key = random.choice(self.threads)
        kind = random.choices(list(self.weights), list(self.weights.values()))[0]
        return self.input_for(key) if kind == "input" else getattr(self, f"_{kind}")(key)

    def input_for(self, key: ThreadKey) -> Plan:
        """A new input."""
        random = self.random
        keyed, configured = random.random() < self.keyed, random.random() < 0.3
        # one that is also invoked may be busy without a limit key, which its inputs then have not
        customer = "c1" if key.thread.endswith("2") else "c0"
        keys = None if key in self.invokes else {"customer": customer}
        op = Input(self.name(), key, [], keyed=keyed, configured=configured, keys=keys)
        op.todo = self.todos[op.name] = callers.random_todo(random, self.acts)
        self.inputs[key].append(op)
        if "linger" in self.acts:
            op.todo = ["linger"]
            return callers.submit(op, "reject")
        mode = random.choice(("queue", "queue", "queue", "reject", "cancel"))
        if mode == "cancel" and random.random() < 0.5:
            mode = "queue"
        delay = random.choice((0.0, 0.0, 0.0, 1.0))
        return callers.submit(op, mode, delay, random.choice((0, 0, 5)))

    def _again(self, key: ThreadKey) -> Plan:
        """The same key, perhaps long after its run has ended."""
        keyed = [op for op in self.inputs[key] if op.keyed]
        if not keyed:
            return self.input_for(key)
        op = self.random.choice(keyed)
        if key in self.invokes and self.random.random() < 0.2:
            return callers.invoke(op, "")
        return callers.submit(op, self.random.choice(("queue", "queue", "reject")))

    def _invoke(self, key: ThreadKey) -> Plan:
        if key not in self.invokes:
            return self.input_for(key)
        keyed, configured = self.random.random() < 0.5, self.random.random() < 0.3
        op = Input(self.name(), key, [], keyed=keyed, configured=configured)
        alone = tuple(act for act in self.acts if "spawn" not in act and "leave" not in act)
        op.todo = self.todos[op.name] = callers.random_todo(self.random, alone, 2)
        self.inputs[key].append(op)
        return callers.invoke(op, self.random.choice(("", "", "cancel")))

    def _look(self, key: ThreadKey) -> Plan:
        return callers.simple("state", key)

    def _cancel(self, key: ThreadKey) -> Plan:
        return callers.simple("cancel", key)

    def _delete(self, key: ThreadKey) -> Plan:
        self._forget(key)
        return callers.simple("delete", key)

    def _retain(self, key: ThreadKey) -> Plan:
        self.history.pruned.add(key.tenant)
        self._forget(*self._threads_of(key.tenant))
        return callers.retain(key.tenant, failed=self.random.random() < 0.5)

    def _bulk(self, key: ThreadKey) -> Plan:
        action, status = self.random.choice(
            (("retry", "failed"), ("cancel", "sleeping"), ("delete", "completed"))
        )
        if action == "delete":
            self._forget(*self._threads_of(key.tenant))
        return callers.bulk(action, key.tenant, status)

    def _threads_of(self, tenant: str) -> list[ThreadKey]:
        return [key for key in self.threads if key.tenant == tenant]

    def _forget(self, *keys: ThreadKey) -> None:
        """A key means nothing once its thread is gone."""
        for key in keys:
            self.inputs[key].clear()
        self.unsure = [plan for plan in self.unsure if plan.call.key not in keys]

    def _limit(self, key: ThreadKey) -> Plan:
        random = self.random
        graph = random.choice(("", *GRAPHS))
        tenant = random.choice(("", *self.tenants))
        kind = random.choice(("concurrency", "key", "key", "rate", "paused", "none"))
        new = {
            "concurrency": Limit(graph=graph, tenant=tenant, concurrency=random.randint(1, 2)),
            "key": Limit(graph=graph, tenant=tenant, key="customer", concurrency=1),
            "rate": Limit(graph=graph, tenant=tenant, rate=random.randint(1, 3), period=2.0),
            "paused": Limit(graph=graph, tenant=tenant, paused=True),
            "none": Limit(graph=graph, tenant=tenant),
        }[kind]
        self.limits[graph, tenant, new.key] = new
        return callers.limit(new)

    def _care(self, key: ThreadKey) -> Plan:
        """Look; what is then done about it is decided by ``react``."""
        return callers.simple("state", key)

    def _send(self, key: ThreadKey) -> Plan:
        keyed, topic = self.random.random() < self.keyed, self.random.choice(TOPICS)
        quiet, at_most = self.debounce if self.random.random() < 0.8 else (0.0, None)
        return callers.send(key, self.name(), topic, keyed=keyed, quiet=quiet, at_most=at_most)

    def _mail(self, key: ThreadKey) -> Plan:
        """Look into the mailbox; ``react`` may discard a message."""
        return callers.simple("mailbox", key)

    def _emitted(self, key: ThreadKey) -> Plan:
        return callers.simple("emitted", key)

    def _remember(self, key: ThreadKey) -> Plan:
        part = self.random.choice(("count", "count", "put"))
        return callers.remember(key.tenant, self.name(), part)

    def _recall(self, key: ThreadKey) -> Plan:
        return callers.recall(key.tenant, self.random.choice(("", "own", "own/o1")))

    def _archive(self, key: ThreadKey) -> Plan:
        return callers.archive(key, self._pick())

    def _restore(self, key: ThreadKey) -> Plan:
        return callers.restore(key, self._pick())

    def _prune(self, key: ThreadKey) -> Plan:
        self.history.pruned.add(key.tenant)
        return callers.archive(key, self._pick(), self.random.choice((1, 2, 5)))

    def _past(self, key: ThreadKey) -> Plan:
        copy = f"copy{self.name()}" if self.random.random() < 0.3 else ""
        return callers.past(key, self._pick(), copy)

    def beside(self, call: Call) -> Plan | None:
        """What somebody else does to a thread while it is archived, restored or pruned."""
        if call.verb not in PAST[1:] or self.random.random() < 0.3:
            return None
        kinds = [kind for kind in (*PAST[1:], "delete") if self.weights.get(kind)]
        kind = self.random.choice(kinds)
        plan: Plan = getattr(self, f"_{kind}")(call.key)
        return plan

    def _pick(self) -> int:
        return self.random.randrange(1000)

    def last_looks(self, keys: Iterable[ThreadKey]) -> Iterator[Plan]:
        """At the end: whole histories, before they are archived, after that and restored."""
        for key in keys if self.archives else ():
            yield callers.past(key, None)
            yield callers.archive(key, None)
            yield callers.restore(key, None)

    def _wrong(self, key: ThreadKey) -> Plan:
        return self.random.choice((callers.simple("retry", key), callers.answer(key, self.name())))

    def react(self, call: Call, found: Any) -> Plan | None:
        """What somebody does about what they see of a thread, or of its mailbox."""
        if call.verb == "mailbox":
            found = [one for one in found if isinstance(one.value, str)]
            chosen = self.random.choice(found) if found and self.random.random() < 0.3 else None
            return chosen and callers.discard(call.key, chosen.value, chosen.number)
        asking = [each for each in found.interrupts if each.asks]
        if found.status == "interrupted" and asking:
            by_id = asking[0].id if self.random.random() < 0.3 else None
            return callers.answer(call.key, self.name(), by_id)
        if found.status in ("failed", "cancelled") and found.next:
            return callers.simple("retry", call.key)
        return None

    def care(self, info: ThreadInfo, waiting: int, now: int, unread: Any) -> Plan | None:
        """What people do about a thread at the end, so that everything can be applied.

        Workers do the rest: only questions, runs that failed for good, those of ``invoke`` that
        nobody drives any more, and those that wait for a message need somebody. ``unread`` are the
        messages of the thread: one that it waits for must have made it due.
        """
        if info.status == "interrupted" and info.questions:
            is_left = info.wake_at is not None and info.lane and self.random.random() < 0.5
            return None if is_left else callers.answer(info.key, self.name())
        if info.worker or info.due_at is not None:
            return None
        if info.status == "sleeping" and info.waiting_topics:
            topics = {topic: seen for topic, seen in info.waiting_topics if topic[:2] != "__"}
            if not topics:
                return None  # it waits for a child
            if any(one.number > topics.get(one.topic, one.number) for one in unread):
                return None if info.lane else callers.simple("retry", info.key)
            topic, times = self.random.choice([*topics]), self.debounce
            return callers.send(
                info.key, self.name(), topic, keyed=True, quiet=times[0], at_most=times[1]
            )
        is_late = info.wake_at is None or info.wake_at <= now
        sleeps = info.status == "sleeping" and is_late and not waiting
        if info.status in ("failed", "interrupted", "running") or sleeps:
            return callers.simple("retry", info.key)
        return None

    def care_for_child(self, info: ThreadInfo, parent: RunRecord | None) -> Plan | None:
        """Answer a child, unless it was to be cancelled with its parent's run."""
        is_asked = info.status == "interrupted" and info.questions
        is_left = parent is not None and parent.status == "cancelled"
        return callers.answer(info.key, self.name()) if is_asked and not is_left else None

    def to_ask_again(self, key: ThreadKey) -> list[Input]:
        """Some inputs whose keys are known to have started a run."""
        known = {call.op for call in self.history.of(key) if call.outcome == "returned"}
        asks = self.weights["again"] > 0
        keyed = [op for op in self.inputs[key] if op.keyed and op.name in known and asks]
        return [op for op in keyed if self.random.random() < 0.5]

    def learn(self, plan: Plan) -> None:
        """Whoever got no answer sends the same again, if that is meant to be safe.

        Some deliver what was acknowledged a second time, as queues of messages do.
        """
        call = plan.call
        is_said = call.verb == "answer" or (call.verb == "send" and call.keyed)
        is_safe = (call.keyed and self.weights["again"] > 0) or is_said
        twice = (self.weights["again"] > 0 or call.verb == "send") and self.random.random() < 0.3
        is_unsure = call.outcome == "unknown" or (is_said and call.outcome == "returned" and twice)
        is_gone = any(
            deletes(each) and call.began < over(each) for each in self.history.of(call.key)
        )
        if is_unsure and is_safe and not is_gone and not call.mode.startswith("again "):
            again = Call(
                call.verb,
                call.key,
                call.op,
                call.mode,
                call.keyed,
                configured=call.configured,
                quiet=call.quiet,
                at_most=call.at_most,
            )
            self.unsure.append(Plan(again, plan.act, in_transaction=plan.in_transaction))
