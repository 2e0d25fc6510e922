"""Histories on real processes: workers that are killed, stopped and drained, and a real database.

Calls and faults of a history are those of its seed; how they meet is up to the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from queue import Queue
from random import Random
from tempfile import mkdtemp
from threading import Event, Lock
from typing import Any

from milecastle import App
from milecastle.errors import MilecastleError
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import waiting_inputs
from milecastle.ports.limits import Limit
from milecastle.stores.opening import find_store
from tests.model import callers
from tests.model.callers import Input, Plan, perform
from tests.model.graphs import GRAPHS, LARGE, STAGE, State, app_of
from tests.model.history import Effect, History, reverts
from tests.model.hooks import note_told, undelivered
from tests.model.nursery import FileWorld, open_store
from tests.model.people import People
from tests.model.proxy import Proxy
from tests.model.specification import judge
from tests.model.views import look, parent_of, remembered, served, unended

__all__ = ["SHARED", "Processes"]

ROOT = Path(__file__).parents[2]
SILENT = 1.0
CALLERS = 2
STOPPED = 10.0
PATIENCE = 60.0
SHARED = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files of histories are: in memory if possible."""
_ABOUT = re.compile(r"thread '([^']+)': (.*)")
PROBE = ThreadKey("probe", "-")
LARGEST = "model_largest"
"""A constraint of the database: it refuses what the act ``large`` writes, and nothing smaller."""


class Real(History):
    """A history in real time."""

    def tick(self) -> int:
        return time.monotonic_ns()


class Nursery:
    """The process that forks workers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.model.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, wanted: dict[str, Any]) -> int:
        """Start a worker; its pid."""
        given, said = self._process.stdin, self._process.stdout
        assert given is not None
        assert said is not None
        given.write(json.dumps(wanted) + "\n")
        given.flush()
        return int(said.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Database:
    """A store that is emptied before each history, and what can happen to it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.proxy: Proxy | None = None
        self._count = 0
        if kind == "postgres":
            from tests.postgres_cluster import new_schema, the_cluster

            self._schema = new_schema()
            self.proxy = Proxy(the_cluster().port)
            with closing(find_store(the_cluster().url_of(self._schema))):
                pass
            self._run(f"CREATE TABLE {self._schema}.model_payments (place text)")
            check = f"CONSTRAINT {LARGEST} CHECK (octet_length(payload) < {LARGE})"
            self._run(f"ALTER TABLE {self._schema}.entries ADD {check}")
        elif kind == "shards":
            self._new_map()

    def _new_map(self) -> None:
        from tests.sharded_cluster import new_map

        self._map = new_map(self.folder, 2)
        self._is_worn = False

    def renew(self) -> None:
        """Begin with an empty store."""
        self._count += 1
        if self.kind == "postgres":
            from tests.postgres_cluster import emptied, the_cluster

            assert self.proxy is not None
            self.proxy.disarm()
            emptied(the_cluster().url_of(self._schema))
            self._run(f"TRUNCATE {self._schema}.model_payments")
        elif self.kind == "shards":
            from tests.sharded_cluster import empty_map

            if self._is_worn:
                self._new_map()
            else:
                empty_map(self._map)

    def url(self, name: str) -> str:
        """The URL for a process of this name."""
        if self.kind == "sqlite":
            return f"sqlite:///{self.folder}/model{self._count}.db?synchronous=normal"
        if self.kind == "shards":
            return str(self._map)
        assert self.proxy is not None
        path = f"-csearch_path%3D{self._schema}%2Cpublic"
        return (
            f"postgresql://postgres@127.0.0.1:{self.proxy.port}/postgres?schema={self._schema}"
            f"&application_name={name}&options={path}&timeout=10&sslmode=disable&gssencmode=disable"
        )

    def connect(self) -> Any:
        """A caller's own connection."""
        if self.kind == "sqlite":
            return sqlite3.connect(f"{self.folder}/model{self._count}.db", timeout=10)
        import psycopg

        url = self.url("c0").replace(f"schema={self._schema}&", "").replace("&timeout=10", "")
        return psycopg.connect(url)

    def paid(self) -> Counter[str]:
        """The payments that were committed, by place."""
        if self.kind != "postgres":
            return Counter()
        found = self._run(f"SELECT place FROM {self._schema}.model_payments")
        return Counter(str(place) for (place,) in found)

    def terminate(self, random: Random) -> None:
        """End some of the server's processes."""
        chance = random.choice((0.2, 0.5))
        self._run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = "
            f"'client backend' AND pid <> pg_backend_pid() AND random() < {chance}"
        )

    def restart(self) -> None:
        """The server crashes and starts again."""
        from tests.postgres_cluster import the_cluster

        the_cluster().stop("immediate")
        the_cluster().start()

    def move(self, random: Random, keys: list[ThreadKey]) -> None:
        """Move the shard of a thread to a database."""
        from milecastle.stores.opening import find_shards

        for _ in find_shards(str(self._map)).move([random.choice(keys).shard], random.choice("ab")):
            pass

    def copy(self, key: ThreadKey) -> Callable[[], None]:
        """Back up the database that has a thread, then move its shard; a function restores it."""
        from milecastle.stores.opening import find_shards
        from milecastle.stores.sharded import read_map

        urls = read_map(self._map).urls
        name = self._place(key)
        database = urls[name].rpartition("/")[2]
        self._run(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = "
            f"'{database}'"
        )
        self._run(f"CREATE DATABASE {database}_copy TEMPLATE {database}")
        for _ in find_shards(str(self._map)).move([key.shard], "b" if name == "a" else "a"):
            pass

        def restore() -> None:
            self._is_worn = True
            self._run(f"DROP DATABASE {database} WITH (FORCE)")
            self._run(f"ALTER DATABASE {database}_copy RENAME TO {database}")

        return restore

    def _place(self, key: ThreadKey) -> str:
        from tests.process.sharded_moves import states

        found = states(self._map, key.shard)
        return next(name for name, state in found.items() if state == "here")

    def _run(self, query: str) -> list[tuple[object, ...]]:
        from tests.postgres_cluster import the_cluster

        return the_cluster().execute(query.encode())

    def close(self) -> None:
        if self.proxy is not None:
            self.proxy.close()


class Processes:
    """Makes histories of one kind, one after the other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.folder = Path(mkdtemp(prefix="mc-model-", dir=SHARED))
        self.nursery = Nursery()
        self.database = Database(kind, self.folder)
        self.happened: Counter[str] = Counter()

    def run(self, seed: int) -> History:
        """Make the history of a seed; its ``wrong`` says what is wrong with it."""
        self.database.renew()
        folder = self.folder / f"history{seed}"
        folder.mkdir()
        course = _Course(self, seed, folder)
        try:
            return course.run()
        finally:
            course.close()
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.nursery.close()
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Course:
    def __init__(self, processes: Processes, seed: int, folder: Path) -> None:
        self.random = random = Random(seed)
        self.processes = processes
        self.database = processes.database
        self.kind = processes.kind
        self.folder = folder
        self.history = Real(clock=lambda: time.monotonic_ns() // 1000)
        self.people = People(random, self.history)
        self.objects = f"file://{folder}/objects" if self.people.archives else None
        if self.kind == "postgres" and random.random() < 0.6:
            some = self.people.acts if random.random() < 0.5 else ("plain",)
            self.people.acts = (*some, "pay", "pay")
        if self.kind == "postgres" and random.random() < 0.3:
            self.people.acts = (*self.people.acts, "large")
        if self.kind == "shards":
            self.people.forget()
        self.people.weights.update(retain=0, limit=0)
        self.faults = self._faults()
        self.limited = random.random() < 0.4
        self.size = random.randint(2, 3)
        self.workers: dict[str, int] = {}
        self.stopped: set[str] = set()
        self.births: dict[int, int] = {}
        self._started = 0
        self._free: Queue[dict[str, App[State]]] = Queue()
        self._lock = Lock()
        self._stores: list[Any] = []
        self._callers = ThreadPoolExecutor(CALLERS)
        self._opened = 0
        self._futures: list[Future[None]] = []
        self.deliveries: list[str] = []
        self._probes: list[tuple[str, int, int]] = []
        STAGE.world = FileWorld(str(folder))
        for _ in range(CALLERS):
            self._open_apps()
        for bucket in self.people.buckets:
            self._stores[0].buckets.put(bucket)
            self.history.buckets[bucket.tenant] = bucket.rate, bucket.burst

    # ---- workers

    def start(self) -> None:
        self._started += 1
        name = f"w{self._started}"
        options = {
            "concurrency": 20,
            "poll": 0.1,
            "heartbeat": 0.3,
            "silent_after": SILENT,
            "grace": 1.0,
            "losses": 50,
        }
        self.workers[name] = pid = self.processes.nursery.start(
            {
                "url": self.database.url(name),
                "objects": self.objects,
                "folder": str(self.folder),
                "name": name,
                "interval": 1,
                "mails": self.people.mails,
                "hooks": self.people.hooks,
                "options": options,
            }
        )
        self.births[pid] = time.monotonic_ns()

    def supervise(self) -> None:
        """Start a worker for each that is gone."""
        for name, pid in list(self.workers.items()):
            if not _is_there(pid):
                del self.workers[name]
                self.stopped.discard(name)
        while len(self.workers) < self.size:
            self.start()

    def signal(self, name: str, number: int) -> None:
        pid = self.workers.get(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # ---- calls

    def _open_apps(self) -> None:
        """Each caller has a store of its own."""
        self._opened += 1
        store = open_store(self.database.url(f"c{self._opened}"), self.objects)
        self._stores.append(store)
        self._free.put({graph: self._app(graph, store) for graph in GRAPHS})

    def _app(self, graph: str, store: Any) -> App[State]:
        return app_of(graph, store, mails=self.people.mails, hooks=self.people.hooks)

    def make(self, plan: Plan) -> Future[None]:
        """Make a call in one of the threads of callers."""
        return self._callers.submit(self._perform, plan)

    def _perform(self, plan: Plan) -> None:
        self.processes.happened[plan.call.verb] += 1
        apps = self._free.get()
        try:
            app = apps[self.people.graph_of(plan.call.key)]
            found = perform(self.history, plan, app)
        finally:
            self._free.put(apps)
        with self._lock:
            self.people.learn(plan)
            is_look = found is not None and plan.call.verb in ("state", "mailbox")
            reaction = self.people.react(plan.call, found) if is_look else None
        if reaction is not None:
            self._perform(reaction)

    # ---- faults

    def _faults(self) -> list[Callable[[], None]]:
        """The faults of this history; those of a pair are two kinds."""
        found = [self._kill, self._drain, self._stop, self._jump]
        if self.kind == "postgres":
            found += [self._lose_answer] * 4 + [self._stop_at_message] * 6 + [self._terminate]
            found += [self._delay_message] * 3
        if self.kind == "shards":
            found += [self._move] * 4 + [self._terminate]
        return self.random.sample(found, 2) if self.people.hurry else found

    def disturb(self) -> None:
        fault = self.random.choice(self.faults)
        if self.kind == "postgres" and self.random.random() < 0.02:
            fault = self._restart
        self.processes.happened[fault.__name__[1:]] += 1
        fault()

    def _someone(self) -> str:
        return self.random.choice(sorted(self.workers))

    def _kill(self) -> None:
        self.signal(self._someone(), signal.SIGKILL)

    def _drain(self) -> None:
        self.signal(self._someone(), signal.SIGTERM)

    def _jump(self) -> None:
        self.signal(self._someone(), signal.SIGUSR1)

    def _stop(self) -> None:
        name = self._someone()
        self.signal(name, signal.SIGSTOP)
        self._while_stopped(name)

    def _stop_at_message(self) -> None:
        """Stop a worker when it is about to send a message of some kind."""
        assert self.database.proxy is not None
        reached, over, stopped = Event(), Event(), list[str]()

        def stop(name: str) -> None:
            self.signal(name, signal.SIGSTOP)
            stopped.append(name)
            reached.set()
            over.wait(STOPPED + 2)

        self.database.proxy.hold("w", self.random, stop)
        self._send_inputs()
        if reached.wait(2.0):
            self._while_stopped(*stopped)
        over.set()

    def _delay_message(self) -> None:
        """A message of a worker is late: what its other runs write meanwhile becomes one group."""
        assert self.database.proxy is not None
        reached, seconds = Event(), self.random.choice((0.2, 0.5))

        def delay(_: str) -> None:
            reached.set()
            time.sleep(seconds)

        self.database.proxy.hold("w", self.random, delay)
        self._send_inputs()
        reached.wait(2.0)

    def _send_inputs(self) -> None:
        """Some inputs for one thread or two: a message of any kind is soon sent."""
        for key in self.random.choices(self.people.threads[:2], k=4):
            with self._lock:
                self._futures.append(self.make(self.people.input_for(key)))

    def _while_stopped(self, name: str) -> None:
        """Others continue: what is due now is begun before the worker is back."""
        began = time.monotonic()
        op = Input(self.people.name(), PROBE, [], keyed=True)
        op.key = ThreadKey("probe", op.name)
        is_probed = self.kind == "postgres" and len(self.workers) > 1
        if is_probed:
            plan = callers.submit(op, "reject")
            self.make(plan).result()
            is_probed = plan.call.outcome == "returned"
        while time.monotonic() - began < STOPPED:
            time.sleep(0.1)
            if not is_probed and time.monotonic() - began > SILENT + 1.0:
                break
            if is_probed and op.name in self._begun() and time.monotonic() - began > SILENT + 1.0:
                break
        else:
            if is_probed and op.name not in self._begun() and self._others_beat(name):
                self.history.wrong.append(
                    f"progress: input {op.name} was due and allowed, and no living worker began "
                    f"with it for {STOPPED} seconds while another was stopped"
                )
        self.signal(name, signal.SIGCONT)

    def _others_beat(self, stopped: str) -> bool:
        """Whether another worker is alive, and has been for a while."""
        store: Any = self._stores[0]
        with suppress(MilecastleError):
            return any(worker.silent < 1.0 and not worker.draining for worker in store.workers())
        return False

    def _begun(self) -> set[str]:
        return {effect.place for effect in self._effects() if effect.what == "began"}

    def _effects(self) -> list[Effect]:
        path = self.folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        found: list[Effect] = []
        recorded: dict[str, tuple[int, int]] = {}
        for line in lines:
            moment, pid, what, place = line.split(" ", 3)
            at, process = int(moment), int(pid)
            known = recorded.get(place)
            # a worker that was suspended for long continues with what is no longer its own
            excused = known is not None and process != known[1] and self._born(process) < known[0]
            found.append(Effect(at, what, place, excused, at // 1000))
            if what == "recorded":
                recorded[place] = (at, process)
        return found

    def _born(self, pid: int) -> int:
        return self.births.get(pid, 0)

    def _lose_answer(self) -> None:
        assert self.database.proxy is not None
        letter, seconds = self.random.choice("ccw"), self.random.choice((0.0, 1.0, 2.0))
        self.database.proxy.lose_answer(letter, self.random, seconds)
        self._send_inputs()

    def _terminate(self) -> None:
        self.database.terminate(self.random)

    def _restart(self) -> None:
        self.database.restart()

    def _move(self) -> None:
        with suppress(MilecastleError):
            self.database.move(self.random, self.people.threads)

    def _restore(self, key: ThreadKey) -> None:
        """A shard moves, its thread goes on, and the database it left is restored from before.

        Whoever reads the thread then sees what was acknowledged, or an error.
        """
        self.processes.happened["restore"] += 1
        self._end_workers()
        restore = self.database.copy(key)
        for _ in range(CALLERS):
            self._open_apps()
        self.supervise()
        plan = callers.submit(Input(self.people.name(), key, [], keyed=True), "queue")
        self.make(plan).result(60)
        self._settle()
        self.make(callers.simple("state", key)).result(60)
        self._look_at_end(key)
        self._end_workers()
        restore()
        with suppress(MilecastleError):
            self._open_apps()
            app = self._app(self.people.graphs[key], self._stores[-1])
            perform(self.history, callers.simple("state", key), app)

    def _end_workers(self) -> None:
        for pid in self.workers.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(map(_is_there, self.workers.values())):
            time.sleep(0.01)
        self.workers.clear()
        for store in self._stores:
            store.close()
        self._stores.clear()
        while not self._free.empty():
            self._free.get()

    def _read_logs(self) -> None:
        """What a worker logs about a thread names no other thread, and is about its own values."""
        large = {call.key.thread for call in self.history.calls if "large" in self._todo(call.op)}
        for path in self.folder.glob("*.log"):
            for name, said in _ABOUT.findall(path.read_text(errors="replace")):
                if LARGEST in said:
                    self.processes.happened["refused"] += 1
                    if name not in large:
                        self.history.wrong.append(f"{name} was refused another's value")
                for other in self.history.names - {name}:
                    if f"'{other}'" in said:
                        text = f"an error about {name} names {other}: {said[:90]}"
                        self.history.wrong.append(text)

    # ---- the course

    def run(self) -> History:
        random = self.random
        for _ in range(self.size):
            self.start()
        if self.limited:
            tenant = random.choice(self.people.tenants)
            new = random.choice(
                (Limit(graph="another", concurrency=5), Limit(tenant=tenant, concurrency=2))
            )
            self.make(callers.limit(new)).result()
        if self.database.proxy is not None:
            self.database.proxy.disarm()
        rounds = random.randint(2, 4)
        for _ in range(rounds):
            for _ in range(random.randint(3, 8)):
                with self._lock:
                    plan = self._perhaps_in_transaction(self.people.choose())
                    beside = self.people.beside(plan.call)
                self._futures += [self.make(each) for each in (plan, beside) if each]
                time.sleep(random.choice((0.0, 0.01, 0.1)))
            self.disturb()
            self.supervise()
        self._wait()
        if self._settle():
            self._ask_again()
            self._settle()
        keys = (*self._keys(), *self._children())
        for plan in self.people.last_looks(keys):
            self.make(plan).result(60)
        for key in keys:
            self._look_at_end(key)
        if self.people.remembers:
            app = self._app(GRAPHS[0], self._stores[0])
            self.history.memory = remembered(app, self.people.tenants)
        if self.history.final and random.random() < 0.25:
            served([self._app(name, self._stores[0]) for name in GRAPHS], self.history.final)
        if self.kind == "shards" and random.random() < 0.2:
            self._restore(random.choice(self.people.threads))
        self._read_logs()
        self.history.effects += self._effects()
        self.history.paid.update(self.database.paid())
        self._check_payments()
        self.history.wrong[:] = judge(self.history)
        return self.history

    def _check_payments(self) -> None:
        for effect in self.history.effects:
            if effect.what == "recorded" and self.kind == "postgres":
                op, _, at = effect.place.partition("/")
                if "pay" in self._todo(op)[int(at)] and not self.history.paid[effect.place]:
                    self.history.wrong.append(f"the payment at {effect.place} is missing")

    def _todo(self, op: str) -> list[str]:
        return self.people.todos.get(op, [""] * 9)

    def _keys(self) -> list[ThreadKey]:
        probes = {call.key for call in self.history.calls if call.key.tenant == "probe"}
        return [*self.people.threads, *sorted(probes)]

    def _perhaps_in_transaction(self, plan: Plan) -> Plan:
        is_possible = plan.call.verb == "send" or plan.call.mode == "reject"
        is_possible = is_possible and not plan.in_transaction
        if self.kind == "shards" or not is_possible or self.random.random() < 0.5:
            return plan
        commits = self.random.random() < 0.7
        return callers.in_transaction(plan, self.database.connect, commits=commits)

    def _wait(self) -> None:
        for future in self._futures:
            future.result(60)
        self._futures.clear()
        until = time.monotonic() + PATIENCE
        while self.people.unsure:
            plan = self.people.unsure.pop()
            self.make(plan).result(60)
            if plan.call.outcome == "unknown":
                time.sleep(0.05)
            if time.monotonic() > until:
                said = f"{plan.call} was sent again for {PATIENCE} seconds: {plan.call.error}"
                self.history.wrong.append(said)
                self.people.unsure.clear()

    def _settle(self) -> bool:
        """Wait until nothing is left to run, or nothing changes for long."""
        until, left, before = time.monotonic() + PATIENCE, [""], [""]
        if self.database.proxy is not None:
            self.database.proxy.disarm()
        while time.monotonic() < until:
            self.supervise()
            with suppress(MilecastleError):
                if self.people.hooks:
                    store, tenants = self._stores[0], self.people.tenants
                    self.deliveries = undelivered(store, tenants, self._retry)
                left = [text for key in self._keys() if (text := self._unfinished(key))]
                left += [text for key in self._children() if (text := self._unended(key))]
                left += self.deliveries
                if not left:
                    return True
            if left != before:
                until, before = time.monotonic() + PATIENCE, left
            self._wait()
            time.sleep(0.1)
        self.history.wrong += [f"a thread is stuck: {text}" for text in left]
        return False

    def _unfinished(self, key: ThreadKey) -> str:
        store: Any = self._stores[0]
        info = store.thread(key)
        if info is None:
            return ""
        waiting = len(waiting_inputs(store, key))
        unread = store.mailbox.unread(key) if info.waiting_topics else ()
        is_told = self._is_told(info)
        plan = self.people.care(info, waiting, store.now(), unread) if is_told else None
        if plan is not None:
            self._futures.append(self.make(plan))
        is_over = info.status in ("completed", "cancelled") and not waiting
        if is_over and info.due_at is None and not info.worker:
            return ""
        return (
            f"{key.thread} {info.status}, due {info.due_at}, {waiting} wait, lane {info.lane[:6]}"
        )

    def _retry(self, key: ThreadKey) -> None:
        self._futures.append(self.make(callers.simple("retry", key)))

    def _is_told(self, info: ThreadInfo) -> bool:
        if not self.people.hooks:
            return True
        # again: it may have asked after the last look, and its delivery may be under way
        if undelivered(self._stores[0], self.people.tenants, self._retry):
            return False
        app = self._app(self.people.graph_of(info.key), self._stores[0])
        return note_told(self.history, app, info)

    def _children(self) -> Iterable[ThreadKey]:
        return History(calls=self.history.calls, effects=self._effects()).children()

    def _unended(self, key: ThreadKey) -> str:
        store: Any = self._stores[0]
        info = store.thread(key)
        if info is None:
            return ""
        plan = self.people.care_for_child(info, parent_of(store, info))
        if plan is not None:
            self._futures.append(self.make(plan))
        return unended(info)

    def _ask_again(self) -> None:
        for key in self.people.threads:
            for op in self.people.to_ask_again(key):
                mode = self.random.choice(("again queue", "again reject"))
                self.make(callers.submit(op, mode)).result(60)

    def _look_at_end(self, key: ThreadKey) -> None:
        store: Any = self._stores[0]
        if store.thread(key) is None:
            return
        app = self._app(self.people.graph_of(key), store)
        reverted = any(map(reverts, self.history.of(key)))
        try:
            self.history.final[key] = look(app, store, key, reverted=reverted)
        except MilecastleError as error:
            self.history.wrong.append(f"{key.thread} cannot be read: {error}")

    def close(self) -> None:
        for pid in self.workers.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.database.proxy is not None:
            self.database.proxy.disarm()
        self._callers.shutdown(wait=True)
        for store in self._stores:
            store.close()
        while any(map(_is_there, self.workers.values())):
            time.sleep(0.01)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
