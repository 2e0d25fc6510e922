"""The pool and the far side, with threads in the place of processes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from milecastle import (
    App,
    Context,
    Event,
    ExecutionConfig,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    Result,
    RunCancelled,
    StateGraph,
    Timeout,
)
from milecastle.compute import processes, task_server
from milecastle.compute.finding import Reference
from milecastle.compute.messages import (
    Ask,
    AskReply,
    Cancel,
    Done,
    EndProcess,
    Enter,
    GraphValues,
    Ready,
    ReturnTasks,
    SharedValues,
    TaskSent,
    TasksReturned,
    decode_from_tasks,
    encode,
    pack_raised,
    unpack_raised,
)
from milecastle.compute.processes import ProcessPool, shared_pool, usable_cpus
from milecastle.compute.ray_cluster import QueuePipe
from milecastle.compute.task_client import RemoteTask
from milecastle.compute.task_server import Server
from milecastle.errors import NodeTimeout, ProcessLost
from tests.acceptance.compute import graphs
from tests.acceptance.compute.graphs import Work as State
from tests.unit.compute.in_threads import (
    HalfSaid,
    Stillborn,
    ThreadProcess,
    app_here,
    app_on,
    pool_of,
)

Invoke = Callable[..., Result[Any]]


class Round:
    """What the tasks of one test share; a thread that was killed may outlast its test."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()
        self.runs: list[int] = []
        self.late: list[str] = []
        self.name = ""


rounds: dict[str, Round] = {}


def round_of(state: State) -> Round:
    return rounds[state.get("folder", "")]


# Here because the far side finds graphs by their names.


def waits_at_the_gate(state: State, ctx: Context) -> State:
    """The first task that comes here waits; the others pass."""
    this = round_of(state)
    this.runs.append(state.get("number", 0))
    if not this.reached.is_set():
        this.reached.set()
        this.gate.wait(30)
    return {"said": [f"{state.get('number')}"]}


def fails_first(state: State) -> State:
    """Number 0 fails, while number 1 waits."""
    this = round_of(state)
    if state.get("number") == 0:
        assert this.reached.wait(30)
        raise ValueError("zero")
    this.reached.set()
    this.gate.wait(30)
    return {}


def uses_context_late(state: State, ctx: Context) -> State:
    this = round_of(state)
    this.gate.wait(30)
    try:
        ctx.once("late", int)
    except InvalidRequest as error:
        this.late.append(str(error))
        raise
    return {}


gated = graphs.mapped(waits_at_the_gate)
failing = graphs.mapped(fails_first).with_default_config(
    ExecutionConfig(sibling_failure="cancel", max_parallel=2)
)
belated = graphs.single(uses_context_late, timeout=Timeout(run=0.2))
unfinished = StateGraph(State)  # a graph that does not compile is passed over


@pytest.fixture
def this(request: pytest.FixtureRequest) -> Generator[Round]:
    rounds[request.node.name] = made = Round()
    made.name = request.node.name
    yield made
    made.gate.set()


@pytest.fixture(params=["blocking", "on a loop"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    def call(app: App[Any], *args: Any, **named: Any) -> Result[Any]:
        if request.param == "blocking":
            return app.invoke(*args, **named)
        return asyncio.run(app.ainvoke(*args, **named))

    return call


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


# -- the same as here --------------------------------------------------------------------------

SAME: dict[str, tuple[StateGraph[State], dict[str, Any]]] = {
    "shared": (graphs.shared, {"numbers": [1, 2, 3, 4]}),
    "going": (graphs.going, {}),
    "asking": (graphs.asking, {"numbers": [1]}),
    "raising": (graphs.raising, {}),
    "exiting": (graphs.exiting, {}),
    "nonsense": (graphs.nonsense, {}),
    "number": (graphs.number, {}),
    "configured": (graphs.configured, {}),
    "mixed": (graphs.mixed, {"number": 2}),
    "outer": (graphs.outer, {"number": 2}),
    "asquares": (graphs.asquares, {"numbers": [1, 2]}),
}


def course(app: App[Any], invoke: Invoke, values: Any) -> Any:
    try:
        result = invoke(app, values, "t", config={"tone": "low"})
        while result.interrupts:
            result = app.resume("t", answer=3)
    except Exception as error:
        return type(error), str(error), repr(error.__cause__)
    return result.state


@pytest.mark.parametrize("name", SAME)
def test_graph_does_in_a_pool_what_it_does_here(name: str, invoke: Invoke, tmp_path: Path) -> None:
    """Fails if an outcome, a question or an error is changed on its way."""
    graph, values = SAME[name]
    values = {**values, "folder": str(tmp_path)}
    with pool_of() as (pool, started):
        found = course(app_on(pool, graph), invoke, values)
        assert found == course(app_here(graph), invoke, values)
        assert started


def test_sleep_and_records_by_messages(invoke: Invoke) -> None:
    with pool_of() as (pool, _):
        app = app_on(pool, graphs.sleeping)
        result = invoke(app, {}, "t")
        assert result.status == "sleeping"
        time.sleep(timedelta(milliseconds=5).total_seconds())
        assert app.resume("t").state["said"] == ["slept"]
        found = [
            event.update
            for event in app_on(pool, graphs.asquares).stream({"numbers": [7]}, "u", mode="events")
            if event.type == "emit"
        ]
        assert found == [7]


def test_observers_see_remote_nodes(invoke: Invoke) -> None:
    class Watching:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_event(self, event: Event[Any]) -> None:
            self.seen.append(f"{event.type} {event.node}")

        def is_on(self) -> bool:
            return True

    watching: Any = Watching()
    with pool_of() as (pool, _):
        invoke(app_on(pool, graphs.mixed, observers=[watching]), {"number": 2}, "t")
    assert {"node_complete here", "node_complete there"} <= {*watching.seen}


def test_files_are_stored_where_the_node_runs(tmp_path: Path) -> None:
    with pool_of() as (pool, _):
        app = app_on(pool, graphs.storing, objects=f"file://{tmp_path}/objects")
        (tmp_path / "given.txt").write_text("written here")
        given = app.files.store(tmp_path / "given.txt")
        app.invoke({"folder": str(tmp_path), "given": given}, thread="t")
        with app.files.open(app.state(thread="t")["made"]) as opened:
            assert opened.read() == b"WRITTEN HERE"


def test_transaction_and_unnamed_graph_are_refused(invoke: Invoke) -> None:
    def node(state: State) -> State:
        return {}

    with pool_of() as (pool, started):
        with pytest.raises(ExecutionError, match="remove run_on="):
            invoke(app_on(pool, graphs.transacting), {}, "t")
        with pytest.raises(InvalidRequest, match="top level of a module"):
            invoke(app_on(pool, graphs.single(node, version="local")), {}, "t")
        assert len(started) == 1


# -- lost processes ----------------------------------------------------------------------------


def test_task_of_a_lost_process_is_repeated_and_its_queue_moves(
    invoke: Invoke, this: Round
) -> None:
    """Fails if the tasks behind the lost one are given an attempt, or are forgotten."""

    def cut() -> None:
        assert this.reached.wait(30)
        time.sleep(0.05)
        started[0].kill()

    with pool_of(most=1) as (pool, started):
        threading.Thread(target=cut, daemon=True).start()
        state = invoke(
            app_on(pool, gated), {"numbers": [*range(5)], "folder": this.name}, "t"
        ).state
        assert state["said"] == [f"{n}" for n in range(5)]
        assert sorted(this.runs) == [0, 0, 1, 2, 3, 4]
        assert len(started) == 2


def test_process_that_stops_within_a_message_delays_no_other(invoke: Invoke) -> None:
    """Fails if one thread reads all pipes: it waits for the rest of the message."""
    made: list[Any] = []

    def start(pipe: connection.Connection) -> Any:
        made.append(ThreadProcess(pipe) if made else HalfSaid(pipe))
        return made[-1]

    with pool_of(2, start) as (pool, _):
        first = threading.Thread(
            target=app_on(pool, graphs.squares).invoke, args=({"numbers": [1]}, "t"), daemon=True
        )
        first.start()
        assert wait_until(lambda: bool(made) and made[0].said.is_set())
        options = ExecutionOptions(cancel=_Soon(20))
        state = invoke(app_on(pool, graphs.sleeping), {}, "u", options=options)
        assert state.status == "sleeping"
        made[0].kill()
        first.join(30)
        assert not first.is_alive()


def test_task_behind_a_long_one_goes_to_a_free_process(invoke: Invoke, this: Round) -> None:
    """Fails if nothing is recalled: what is queued behind the task that waits stays there."""

    def follow() -> None:
        assert wait_until(lambda: len(this.runs) == 12)
        this.gate.set()

    with pool_of(2) as (pool, _):
        app = app_on(pool, graphs.squares)
        app.invoke({"numbers": [*range(40)]}, "t")  # short: many are queued ahead
        threading.Thread(target=follow, daemon=True).start()
        began = time.monotonic()
        invoke(app_on(pool, gated), {"numbers": [*range(12)], "folder": this.name}, "u")
        assert time.monotonic() - began < 25, "it waited for the task at the gate"
        assert sorted(this.runs) == [*range(12)]


def test_process_that_cannot_start_fails_what_waits(invoke: Invoke) -> None:
    """Fails if each task starts another process that ends: 12 tasks would start 36."""
    with pool_of(start=Stillborn) as (pool, started):
        with pytest.raises(ProcessLost, match="before it could take a task"):
            invoke(app_on(pool, graphs.squares), {"numbers": [*range(12)]}, "t")
        assert len(started) <= 2


def test_a_process_that_cannot_start_is_replaced_later(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed: a process killed while it started made the pool smaller forever."""
    monkeypatch.setattr(processes, "_LONGEST_PAUSE", 0.0)
    kinds: Iterator[Callable[[connection.Connection], processes.Process]]
    kinds = iter([ThreadProcess, Stillborn])

    def start(pipe: connection.Connection) -> processes.Process:
        return next(kinds, ThreadProcess)(pipe)

    with pool_of(start=start) as (pool, started):
        app = app_on(pool, graphs.squares)
        invoke(app, {"numbers": [1]}, "a")
        invoke(app, {"numbers": [*range(12)]}, "b")
        end = time.monotonic() + 20
        while sum(isinstance(one, ThreadProcess) for one in started) < 2 and time.monotonic() < end:
            invoke(app, {"numbers": [*range(12)]}, f"{len(started)} {time.monotonic()}")
        assert [type(one) for one in started[:3]] == [ThreadProcess, Stillborn, ThreadProcess]


def test_tasks_do_not_wait_for_a_busy_process_after_another_could_not_start(
    invoke: Invoke, this: Round
) -> None:
    """Seen to fail: nothing looked again when the pause was over, and the only process was busy."""
    kinds: Iterator[Callable[[connection.Connection], processes.Process]]
    kinds = iter([ThreadProcess, Stillborn])

    def start(pipe: connection.Connection) -> processes.Process:
        return next(kinds, ThreadProcess)(pipe)

    def follow() -> None:
        wait_until(lambda: len(this.runs) == 4)
        this.gate.set()

    with pool_of(start=start) as (pool, started):
        invoke(app_on(pool, graphs.squares), {"numbers": [1]}, "a")  # one process is ready
        threading.Thread(target=follow, daemon=True).start()
        began = time.monotonic()
        invoke(app_on(pool, gated), {"numbers": [*range(4)], "folder": this.name}, "t")
        assert time.monotonic() - began < 25, "it waited for the task at the gate"
        assert [type(one) for one in started] == [ThreadProcess, Stillborn, ThreadProcess]


def test_a_dead_process_is_noticed_while_another_holds_its_pipe(invoke: Invoke) -> None:
    """Failed: a process that it had forked held the pipe open, and the run waited for that."""
    held: list[int] = []

    class Forked(HalfSaid):
        """Dies within a message; its grandchild still has the pipe."""

        def _serve(self) -> None:
            held.append(os.dup(self.pipe.fileno()))
            super()._serve()
            self.kill()

    try:
        with pool_of(most=1, start=Forked) as (pool, _), pytest.raises(ExecutionError) as caught:
            invoke(app_on(pool, graphs.squares), {"numbers": [1]}, "t")
        assert isinstance(caught.value.__cause__, ProcessLost)
    finally:
        for number in held:
            os.close(number)


def test_task_out_of_time_is_over_and_its_process_is_killed(
    invoke: Invoke, this: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the code of a task that timed out can still record."""
    monkeypatch.setattr(processes, "GRACE", 0.1)
    with pool_of(most=1) as (pool, started):
        with pytest.raises(ExecutionError) as caught:
            invoke(app_on(pool, belated), {"folder": this.name}, "t")
        assert isinstance(caught.value.__cause__, NodeTimeout)
        end = time.monotonic() + 10
        while not started[0].kills and time.monotonic() < end:
            time.sleep(0.01)
        assert started[0].kills == 1
        this.gate.set()
        while not this.late and time.monotonic() < end:
            time.sleep(0.01)
    assert "is over" in this.late[0]


def test_sibling_of_a_failed_task_is_cancelled(invoke: Invoke, this: Round) -> None:
    with pool_of(most=2) as (pool, _), pytest.raises(ExecutionError, match="zero"):
        invoke(app_on(pool, failing), {"numbers": [0, 1], "folder": this.name}, "t")


def test_cancelled_run_withdraws_what_waits(invoke: Invoke, this: Round) -> None:
    cancel = threading.Event()

    def stop() -> None:
        assert this.reached.wait(30)
        cancel.set()

    with pool_of(most=1) as (pool, _):
        threading.Thread(target=stop, daemon=True).start()
        options = ExecutionOptions(cancel=cancel)
        values = {"numbers": [*range(9)], "folder": this.name}
        with pytest.raises(RunCancelled):
            invoke(app_on(pool, gated), values, "t", options=options)
        time.sleep(0.3)  # the far side has heard of it
        this.gate.set()
        state = invoke(app_on(pool, graphs.shared), {"numbers": [1]}, "u").state
        assert state["said"] == ["1 of 1"]
    assert this.runs == [0], "a task that waited was started"


def test_closed_pool_starts_nothing() -> None:
    with pool_of() as (pool, started):
        pool.close()
        app = app_on(pool, graphs.squares)
        options = ExecutionOptions(cancel=_Soon())
        with pytest.raises(RunCancelled):
            app.invoke({"numbers": [1]}, "t", options=options)
        assert not started


def test_thread_that_a_task_left_behind_is_refused() -> None:
    """Fails if it is taken for the task that runs: without one, the pool heard nothing any more."""
    with pool_of(1) as (pool, started):
        app = app_on(pool, graphs.squares)
        app.invoke({"numbers": [1]}, "t")
        replies: list[AskReply] = []
        ask = vars(Server)["_ask"]
        left = threading.Thread(
            target=lambda: replies.append(ask(started[0].server, 99, "heartbeat", b"")),
            daemon=True,
        )
        left.start()
        left.join(30)
        (reply,) = replies
        assert reply.raised is not None
        assert "thread that it started" in str(unpack_raised(reply.raised, "there"))
        assert app.invoke({"numbers": [2]}, "u").status == "completed"


class _Soon:
    def __init__(self, seconds: float = 0.2) -> None:
        self._end = time.monotonic() + seconds

    def is_set(self) -> bool:
        return time.monotonic() > self._end


def test_process_that_does_not_end_with_the_pool_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(Stillborn):
        def __init__(self, pipe: connection.Connection) -> None:
            self.exitcode = None
            self._kept = pipe

        def kill(self) -> None:
            self.exitcode = -9

    monkeypatch.setattr(processes, "_PATIENCE", 0.01)
    kept: list[Stubborn] = []

    def start(pipe: connection.Connection) -> Stubborn:
        kept.append(Stubborn(pipe))
        return kept[-1]

    pool = ProcessPool(1, start)
    app = app_on(pool, graphs.squares)
    options = ExecutionOptions(cancel=_Soon())
    with pytest.raises(RunCancelled):
        app.invoke({"numbers": [1]}, "t", options=options)
    pool.close()
    assert kept[0].exitcode == -9


def test_pool_is_shared_and_left_behind_by_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    start_over = vars(processes)["_start_over"]
    monkeypatch.setattr(processes, "_pool", None)
    first = shared_pool()
    assert shared_pool() is first
    start_over()
    assert shared_pool() is not first
    start_over()
    start_over()


def test_usable_cpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cpus() >= 1
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert usable_cpus() >= 1


@pytest.mark.parametrize(
    ("code", "said"), [(None, "was cut off"), (3, "exit code 3"), (-9, "signal 9")]
)
def test_end_of_a_process_is_described(code: int | None, said: str) -> None:
    assert said in vars(processes)["_described"](code)


# -- the far side by hand ----------------------------------------------------------------------


class Near:
    """The near side of a server that runs in a thread."""

    def __init__(self, graph: StateGraph[Any], attribute: str, module: str = "") -> None:
        self.ended = threading.Event()
        self.pipe, far = connection.Pipe()
        self.graph = graph.compile().graph
        self.values = GraphValues(self.graph)
        self.thread = threading.Thread(
            target=Server(far).serve, args=(self.ended.set,), daemon=True
        )
        self.thread.start()
        assert self.receive() == [Ready()]
        place = Reference(module or "tests.acceptance.compute.graphs", attribute)
        config = self.values.pack_one({"tone": "low"})
        self.enter = Enter(1, place, self.graph.fingerprint, (), "run", None, config)
        self.send(self.enter, SharedValues(1, 1, self.values.pack({"numbers": [1], "number": 9})))

    def send(self, *messages: Any) -> None:
        self.pipe.send_bytes(encode([*messages]))

    def receive(self) -> list[Any]:
        assert self.pipe.poll(30)
        return [*decode_from_tasks(self.pipe.recv_bytes())]

    def work(self, ticket: int, **named: Any) -> TaskSent:
        body = self.values.pack(named.pop("values", {}))
        without = named.pop("without", ())
        return TaskSent(ticket, 1, "item", "item", 1, 1, body, without, None)


def test_task_without_a_key_of_its_base_does_not_see_it() -> None:
    near = Near(graphs.shared, "shared")
    near.send(near.work(1, without=("number", "gone")))
    (done,) = near.receive()
    assert near.values.unpack(done.body) == {"said": ["None of 1"]}
    near.pipe.close()


def test_task_that_is_cancelled_before_it_starts_does_not_run() -> None:
    near = Near(graphs.shared, "shared")
    near.send(Cancel(2), near.work(1), near.work(2))
    found = [*near.receive(), *near.receive()]
    assert [(done.ticket, done.body is None) for done in found] == [(1, False), (2, True)]
    near.pipe.close()


def test_task_is_returned_unless_it_was_started() -> None:
    """Fails if a ticket is not taken from the set by one side: the task runs twice, or never."""
    near = Near(graphs.asking, "asking")
    near.send(near.work(1))
    (ask,) = near.receive()  # it has started, and waits for the answer
    near.send(near.work(2), near.work(3), ReturnTasks((1, 2, 9)))
    assert near.receive() == [TasksReturned((2,))]
    near.send(AskReply(ask.number, None, pack_raised(InvalidRequest("no"))))
    (first,) = near.receive()
    (second,) = near.receive()
    assert first.ticket == 1
    assert (type(second), second.ticket) == (Ask, 3)
    near.pipe.close()


def test_return_is_said_before_what_comes_after_it() -> None:
    """Fails if a ticket is taken and returned in two steps: the next task is heard first.

    The pool would then take the outcome of the next task for that of the one that was returned.
    """

    class Slow(QueuePipe):
        def __init__(self) -> None:
            super().__init__()
            self.returning = threading.Event()

        def send_bytes(self, data: bytes, /) -> None:
            if isinstance(decode_from_tasks(data)[0], TasksReturned):
                self.returning.set()
                time.sleep(0.3)
            super().send_bytes(data)

    near, pipe = Near(graphs.asking, "asking"), Slow()
    server = Server(pipe)
    threading.Thread(target=server.serve, args=(lambda: None,), daemon=True).start()
    base = SharedValues(1, 1, near.values.pack({"numbers": [1]}))
    pipe.inbox.put(encode([near.enter, base, near.work(1), near.work(2), near.work(3)]))
    heard = [*decode_from_tasks(pipe.outbox.get()), *decode_from_tasks(pipe.outbox.get())]
    assert isinstance(heard[1], Ask)
    answer = AskReply(heard[1].number, None, pack_raised(InvalidRequest("no")))
    pipe.inbox.put(encode([ReturnTasks((2,))]))
    assert pipe.returning.wait(30)
    vars(Server)["_receive"](server, answer)  # its reader is busy
    kinds = [type(decode_from_tasks(pipe.outbox.get(timeout=30))[0]) for _ in range(3)]
    assert kinds == [TasksReturned, Done, Ask]
    pipe.inbox.put(encode([EndProcess()]))
    near.pipe.close()


def test_graph_that_changed_or_cannot_be_imported_is_refused() -> None:
    for attribute, module, said in (
        ("squares_gone", "", "another graph"),
        ("asking", "", "another graph"),
        ("shared", "tests.no_such_module", "could not import its graph (ModuleNotFoundError"),
    ):
        near = Near(graphs.shared, attribute, module)
        near.send(near.work(1))
        (done,) = near.receive()
        assert done.refused
        assert said in str(unpack_raised(done.raised, "there"))
        near.pipe.close()


def test_state_that_cannot_be_made_is_refused_without_its_values() -> None:
    near = Near(graphs.shared, "shared")
    near.send(SharedValues(1, 2, b"\xc1secret"), near.work(1))
    (done,) = near.receive()
    assert done.refused
    assert "secret" not in done.raised.text
    near.pipe.close()


def test_question_of_a_task_is_answered_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_server, "GRACE", 0.01)
    near = Near(graphs.asking, "asking")
    near.send(near.work(1))
    (ask,) = near.receive()
    assert ask == Ask(1, 1, "facts", near.values.pack_one([]))
    near.send(AskReply(1, None, pack_raised(InvalidRequest("no"))))
    (done,) = near.receive()
    assert isinstance(unpack_raised(done.raised, "there"), InvalidRequest)
    near.send(near.work(2))
    near.receive()
    near.pipe.close()  # the task still waits for its answer
    near.thread.join(10)
    assert not near.thread.is_alive()
    assert near.ended.wait(10)


def test_main_function_ends_with_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    ended: list[int] = []
    monkeypatch.setattr(task_server, "GRACE", 0.01)
    monkeypatch.setattr("os._exit", ended.append)
    before = signal.getsignal(signal.SIGINT)
    near, far = connection.Pipe()
    near.close()
    try:
        task_server.serve(far)
        end = time.monotonic() + 10
        while not ended and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [1]


# -- questions that come late ------------------------------------------------------------------


def test_call_that_is_over_answers_with_that() -> None:
    """Fails if a question of a task whose run has ended looks for the port of that run."""
    answered: list[AskReply] = []

    class Recording(ProcessPool):
        def submit(self, tasks: Any) -> None:
            sent.extend(tasks)
            if len(sent) == 2:
                body = GraphValues(app.graph).pack_one([])
                sent[1].call.asked(sent[1], site, Ask(1, 1, "nothing", body))
                assert replied.wait(10)

        def reply(self, task: RemoteTask, reply: AskReply) -> None:
            answered.append(reply)
            replied.set()

    sent: list[RemoteTask] = []
    replied = threading.Event()
    site = Recording(1)
    app = app_on(site, graphs.squares)
    options = ExecutionOptions(cancel=_Soon())
    with pytest.raises(RunCancelled):
        app.invoke({"numbers": [1]}, "t", options=options)
    remote = sent[0]
    for over in (True, False):  # it was stopped, or the run has ended without it
        replied.clear()
        remote.over = over
        remote.call.asked(remote, site, Ask(1, 1, "recorded", b""))
        assert replied.wait(10)
    remote.call.close()
    remote.call.asked(remote, site, Ask(2, 1, "heartbeat", b""))
    assert replied.wait(10)
    replied.clear()
    with pytest.raises(RunCancelled):
        app.invoke({"numbers": [1]}, "other", options=ExecutionOptions(cancel=_Soon()))
    texts = [unpack_raised(reply.raised, "here") for reply in answered if reply.raised]
    said = [str(text) for text in texts]
    assert ["is over" in text for text in said] == [True, True, True, False]
    assert "cannot ask for 'nothing'" in said[3]
    # and an outcome that comes late counts for nothing
    remote.call.finished(remote, Done(1))
    assert remote.call.take() == []
    site.close()
