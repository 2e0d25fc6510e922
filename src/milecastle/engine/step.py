"""A step with more to it than one simple task: branches, fan-outs, subgraphs, retries, questions.

Rules:

- A result is committed as soon as it is available while others still run, so a crash, or the
  failure of a sibling, repeats only unfinished work. Results available together are written
  together.
- Before a task with a retry policy, or one running in another process, is started, its attempt
  is recorded.
- No more tasks run at once than the run, and the node, allow.
- A task that asks or sleeps does not fail; the step is left when nothing else can run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec.structs

from milecastle.engine.applying import Outcome, pack, prepared, read_outcome, unpack
from milecastle.engine.children import BeginChild, Child, Children
from milecastle.engine.effects import AwaitTasks, CancelTasks, Commit, Effect, StartTasks, Stopped
from milecastle.engine.failure_records import describe_task
from milecastle.engine.pauses import Paused
from milecastle.engine.plan import Ending
from milecastle.engine.remembering import Writes
from milecastle.engine.run_events import Items
from milecastle.engine.run_state import RunState
from milecastle.engine.task_times import TaskTimes
from milecastle.engine.tasks import Task, received_row
from milecastle.engine.waiting import Kept, each_wait, is_held, kept_wait, received_by
from milecastle.errors import AttemptsExhausted, MilecastleError, RunCancelled
from milecastle.model.checkpoint import TaskResult
from milecastle.model.run import TaskFailure
from milecastle.model.task import Finished, RunTask


class Step:
    """One step's tasks. Each outcome is in one of the four dicts, by task id.

    ``attempts`` has the attempts of those that failed.
    ``refused`` are failures not the node's own: its result was not an update.
    """

    def __init__(self, run: RunState, tasks: list[Task], begin: BeginChild) -> None:
        self._run = run
        self._config = run.plan.config
        self.number = run.progress.step + 1
        self._running: dict[int, tuple[Task, RunTask, int]] = {}
        self._busy: Counter[str] = Counter()
        self._later: list[tuple[int, int, Task, int]] = []
        self._rows: list[TaskResult] = []
        self._retries = 0
        self._cancelled = False
        self._children = Children(run, begin)
        self.tasks = {task.id: task for task in tasks}
        self.outcomes: dict[str, Outcome] = {}
        self.failures: dict[str, BaseException] = {}
        self.attempts: dict[str, int] = {}
        self.refused: set[str] = set()
        self.waits: Kept = {}
        self._held: set[str] = set()
        self._waiting = self._unfinished(tasks)
        self._times = TaskTimes(run.plan.clock)
        self._items = Items(tasks, self.outcomes) if run.run_events else None

    def _unfinished(self, tasks: list[Task]) -> dict[str, deque[tuple[Task, int]]]:
        records = self._run.records
        waits = self._run.task_port.waits()
        waiting: dict[str, deque[tuple[Task, int]]] = {}
        received = received_by(self._run.progress.reserved)
        self._run.received.is_shared = len(tasks) > 1
        for task in tasks:
            kept = records.outcome(task.id)
            numbers = records.received(task.id) or received.get(task.id)
            if kept is None and numbers:
                self._run.received.reserve(task.id, numbers)
            if kept is not None:
                self.outcomes[task.id] = unpack(kept)
                self._run.received.hold(numbers or ())
            elif is_held(task, waits):
                self._held.add(task.id)
            else:
                made = records.attempts(task.id) if task.node.attempts else records.reruns
                waiting.setdefault(task.node.name, deque()).append((task, made + 1))
        return waiting

    @property
    def attempt(self) -> int:
        for task in self.tasks:
            if task in self.failures:
                return self.attempts[task]
        return max((task.attempt for _, task, _ in self._running.values()), default=1)

    @property
    def failed(self) -> tuple[TaskFailure, ...]:
        if len(self.failures) < 2:
            return ()
        return tuple(
            describe_task(name, task.node.name, self.failures[name], self.attempts[name])
            for name, task in self.tasks.items()
            if name in self.failures
        )

    @property
    def updates(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(task, self.outcomes[task].update) for task in self.tasks]

    @property
    def memory(self) -> dict[str, Writes]:
        each = {task: self.outcomes[task].memory for task in self.tasks}
        return {task: writes for task, writes in each.items() if writes}

    @property
    def ran(self) -> set[str]:
        return self.tasks.keys() - self._held

    @property
    def is_clean(self) -> bool:
        return len(self.outcomes) == len(self.tasks)

    def times(self, nodes: Sequence[str]) -> bytes | None:
        return self._times.take(self.number, nodes, len(self.tasks))

    def run(self) -> Generator[Effect, Any, None]:
        try:
            while True:
                chosen = list(self._choose())
                yield from self._keep(chosen)
                yield from self._start(chosen)
                if not (self._running or self._children or self._later):
                    if not any(self._waiting.values()):
                        yield from self._keep([])
                        return
                    continue
                finished = yield AwaitTasks(self._due())
                yield from self._settle_all(finished)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._run.task_port.stop()
            yield from self._children.stop(error)
            raise

    # ---- starting

    def _choose(self) -> Iterator[tuple[Task, int]]:
        room = self._config.max_parallel - len(self._running) - len(self._children)
        now = self._run.plan.clock.monotonic() if self._later else 0
        while self._later and self._later[0][0] <= now:
            _, _, task, attempt = heappop(self._later)
            self._waiting.setdefault(task.node.name, deque()).appendleft((task, attempt))
        for name, tasks in self._waiting.items():
            limit = self._run.graph.nodes[name].policy.limit
            while tasks and room > 0 and (limit is None or self._busy[name] < limit):
                task, attempt = tasks.popleft()
                if self._may_start(task, attempt):
                    self._busy[name] += 1
                    room -= 1
                    yield task, attempt

    def _may_start(self, task: Task, attempt: int) -> bool:
        retry = task.node.attempts
        if retry is None:
            return True
        if self._failed(task, attempt - 1) >= retry.attempts:
            error = AttemptsExhausted(node=task.node.name, attempts=attempt - 1)
            self._fail(task, attempt - 1, error)
            return False
        mark = self._run.records.mark(task.id, attempt)
        if mark is not None:
            self._rows.append(mark)
        return True

    def _start(self, chosen: list[tuple[Task, int]]) -> Generator[Effect, Any, None]:
        run = self._run
        starting: list[RunTask] = []
        if chosen:
            self._times.tick()
        started = self._times.now
        for task, attempt in chosen:
            if self._cancelled:
                break
            if run.run_events:
                item = self._items.place(task) if self._items else {}
                yield from run.run_events.node_start(
                    task.node.name, task.id, attempt=attempt, item=item
                )
            values = task.state(run.progress.values)
            if (subgraph := task.node.subgraph) is not None:
                state = run.schema.present(values)
                self._times.tick()
                begun = self._times.now
                child = yield from self._children.begin(task, subgraph, state, attempt)
                child.started = begun
                yield from self._take_child(child)
                continue
            run_task = RunTask(
                run.task_port.run, task.node.name, values, task.id, self.number, attempt
            )
            if task.node.wants_context:
                run_task.facts = run.task_port.facts(run_task)
            self._running[id(run_task)] = (task, run_task, started)
            starting.append(run_task)
        if starting:
            yield StartTasks(tuple(starting))

    def _due(self) -> int | None:
        times = [self._later[0][0]] if self._later else []
        if (until := self._children.due()) is not None:
            times.append(until)
        return min(times, default=None)

    # ---- settling

    def _settle_all(self, finished: list[Finished]) -> Generator[Effect, Any, None]:
        self._times.tick()
        for item in finished:
            found = self._running.pop(id(item.task), None)
            if found is None:
                self._children.hand_over(item)
                continue
            task, _, started = found
            if item.refused:
                self.refused.add(task.id)
            remembered = self._run.task_port.remembered
            writes = remembered.take(item.task) if remembered.is_used else ()
            returned, error = item.update, item.error
            yield from self._settle(task, started, item.task.attempt, returned, error, writes)
        ended = yield from self._children.go_on()
        for child in ended:
            yield from self._take_child(child)

    def _take_child(self, child: Child) -> Generator[Effect, Any, None]:
        if not child.is_over:
            return
        self._children.drop(child)
        self._times.tick()
        task, error, update = child.task, child.error, None
        if child.ending is not None and child.ending.status != "completed":
            self._busy[task.node.name] -= 1
            self._times.stop(task, child.started, child.attempt, "")
            self._pause_with(task, child.ending)
            self._mark_pause(task, child.attempt)
            return
        if child.ending is not None:
            try:
                update = child.subgraph.update(task.node.name, child.state, child.ending.values)
            except Exception as raised:
                error = raised
        yield from self._settle(task, child.started, child.attempt, update, error)

    def _pause_with(self, task: Task, ending: Ending) -> None:
        known = {label: wait.until for label, wait in each_wait(ending.reserved)}
        pauses = [
            Paused(found.id, found, known.get(found.id.partition(":")[2]))
            for found in ending.interrupts
        ]
        if ending.wake_at is not None:
            pauses.append(Paused(":", until=ending.wake_at))
        for paused in pauses:
            self.waits[f"{task.id}/{paused.label}"] = kept_wait(task.id, paused)

    def _mark_pause(self, task: Task, attempt: int) -> None:
        if task.node.attempts is not None:
            mark = self._run.records.mark_pause(task.id, attempt)
            if mark is not None:
                self._rows.append(mark)

    def _settle(
        self,
        task: Task,
        started: int,
        attempt: int,
        returned: Any,
        error: BaseException | None,
        writes: Writes = (),
    ) -> Generator[Effect, Any, None]:
        run, name = self._run, task.node.name
        self._busy[name] -= 1
        if isinstance(error, Paused):
            self._times.stop(task, started, attempt, "")
            numbers = run.received.settle(task.id) if run.received.is_used else []
            if len(self.tasks) == 1:
                numbers = []  # no other task could receive them
            self.waits[error.label] = kept_wait(task.id, error, numbers)
            self._rows += self._received_rows(task, numbers)
            self._mark_pause(task, attempt)
            return
        if error is None:
            try:
                returned = prepared(run.schema, returned)
            except Exception as raised:
                error = raised
            else:
                error = self._take(task, returned, writes)
        if error is not None and self._cancelled and not isinstance(error, Exception):
            return  # it was asked to stop
        times = self._times
        if error is not None:
            times.stop(task, started, attempt, type(error).__qualname__)
        elif attempt != 1:
            times.stop(task, started, attempt, None)
        else:
            times.ended += (task, started, times.now)
        if run.run_events is not None:
            yield run.run_events.node_ended(name, task.id, returned, error, attempt=attempt)
        if error is None:
            yield from self._finish_item(task, attempt)
            return
        if self._try_again(task, attempt, error):
            if run.run_events is not None:
                yield run.run_events.retry(name, task.id, attempt + 1, error)
            return
        self._fail(task, attempt, error)
        yield from self._finish_item(task, attempt)
        if self.failures and self._config.sibling_failure == "cancel" and not self._cancelled:
            self._cancelled = True
            self._waiting.clear()
            self._later.clear()
            if self._running:
                yield CancelTasks(tuple(run_task for _, run_task, _ in self._running.values()))
            yield from self._children.cancel(Stopped(RunCancelled()))

    def _finish_item(self, task: Task, attempt: int) -> Generator[Effect, Any, None]:
        run_events, items = self._run.run_events, self._items
        if run_events is None or items is None or task.id not in self.outcomes:
            return
        if item := items.finish(task):
            yield run_events.item_complete(task.node.name, task.id, attempt, item)

    def _take(self, task: Task, returned: Any, writes: Writes) -> BaseException | None:
        run = self._run
        try:
            outcome = read_outcome(run.graph, task.node.name, returned, run.progress.values)
            if writes:
                outcome = msgspec.structs.replace(outcome, memory=writes)
            rows = self._rows_of(task, outcome)
        except MilecastleError as refused:
            self.refused.add(task.id)
            return refused
        self.outcomes[task.id] = outcome
        self._rows += rows
        if task.node.attempts is not None:
            run.records.forget_attempts(task.id)
        return None

    def _rows_of(self, task: Task, outcome: Outcome) -> list[TaskResult]:
        saver, received = self._run.saver, self._run.received
        if saver is None:
            return []
        name = self._run.records.outcome_row(task.id)
        row = saver.result(name, pack(outcome), task.node.name)
        if not received.is_used:
            return [row]
        numbers = received.settle(task.id)
        return [row, *self._received_rows(task, numbers, is_new=bool(numbers))]

    def _received_rows(
        self, task: Task, numbers: list[int], *, is_new: bool = False
    ) -> list[TaskResult]:
        saver, records = self._run.saver, self._run.records
        if saver is None or not (is_new or records.received(task.id)):
            return []
        name = received_row(self.number, task.id)
        records.rows[name] = kept = {"value": numbers}
        return [saver.result(name, kept, task.node.name)]

    def _try_again(self, task: Task, attempt: int, error: BaseException) -> bool:
        retry = task.node.attempts
        failed = self._failed(task, attempt)
        if (
            retry is None
            or failed >= retry.attempts
            or task.id in self.refused
            or not task.node.policy.is_retried(error)
            or self._cancelled
        ):
            return False
        seed = f"{self._run.plan.run_id}/{task.id}/{failed}"
        due = retry.next_at(self._run.plan.clock.monotonic(), failed, seed)
        self._retries += 1
        if self._run.received.is_used:
            self._run.received.keep(task.id)
        heappush(self._later, (due, self._retries, task, attempt + 1))
        return True

    def _failed(self, task: Task, attempt: int) -> int:
        return attempt - self._run.records.pauses(task.id)

    def _fail(self, task: Task, attempt: int, error: BaseException) -> None:
        self.attempts[task.id] = attempt
        fallback = task.node.policy.on_error
        is_final = fallback is None or task.id in self.refused or not isinstance(error, Exception)
        if not (is_final and self._run.records.received(task.id)):  # its records are about them
            self._run.received.release(task.id)
        if fallback is None or is_final:
            self.failures[task.id] = error
            return
        cause = (type(error).__qualname__, str(error))
        outcome = Outcome({}, (fallback,), (task.node.name, *cause))
        self.outcomes[task.id] = outcome
        self._rows += self._rows_of(task, outcome)

    def _keep(self, chosen: list[tuple[Task, int]]) -> Generator[Effect, Any, None]:
        saver, run_events = self._run.saver, self._run.run_events
        over = not (chosen or self._running or self._children or self._later)
        if saver is None:
            if run_events is not None:
                yield from run_events.updates()
            return
        if not self._rows or (over and self.is_clean):
            return
        batch = saver.results(self._rows)
        self._rows = []
        yield Commit(batch)
        saver.saved(batch)
        if run_events is not None:
            yield from run_events.updates()
