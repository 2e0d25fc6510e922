"""Reasons a thread does not run, as far as its store knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from milecastle.app.runs.ownership import why_lost
from milecastle.app.threads.compatibility import Compatibility
from milecastle.app.threads.reading import running_now
from milecastle.engine.status import claimed
from milecastle.errors import InvalidRequest
from milecastle.model.children import joined_children
from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import name_of
from milecastle.model.run import ThreadInfo
from milecastle.ports.buckets import marks_of
from milecastle.ports.claims import ClaimStore, one_cell, serves, waiting_inputs
from milecastle.ports.limits import Limit, graph_of
from milecastle.ports.store import Store, offers
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.support.printable import quoted
from milecastle.views.documents import WhyDocument, WhyLine
from milecastle.views.lines import moment, names, seconds

_LATE: Final = 60.0
"""After how many seconds without a claim a due thread is worth a warning."""


def why_document(store: Store, key: ThreadKey, fit: Compatibility | None = None) -> WhyDocument:
    """A thread's status, and each reason why it does not run, or that it does.

    ``fit`` is the thread's compatibility with the named code.

    Names, numbers and times only: it contains no state values.
    """
    info = store.thread(key)
    if info is None:
        raise InvalidRequest(f"there is no thread '{key.thread}' in tenant '{key.tenant}'")
    inputs = len(waiting_inputs(store, key))
    lines = [*_of_run(store, info, inputs)]
    if info.lane and info.due_at is not None and not info.worker and offers(store, ClaimStore):
        lines += _of_queue(store, info)
    if inputs and claimed(info).status not in ("completed", "cancelled"):
        said = f"{_counted(inputs, 'input')} behind run {info.run_id}"
        lines.append(_line("behind", f"{said}, which is {claimed(info).status}"))
    if fit is not None and not fit:
        reasons = "; ".join(fit.reasons)
        lines.append(_line("refused", f"the code that was named refuses it: {reasons}", fit.advice))
    return WhyDocument(
        tenant=key.tenant,
        thread=key.thread,
        status=claimed(info).status,
        reasons=tuple(lines),
        sentence=_sentence(lines),
    )


def _sentence(lines: Sequence[WhyLine]) -> str:
    said = "; ".join(line.text for line in lines)
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def _line(code: str, text: str, advice: str = "") -> WhyLine:
    return WhyLine(code=code, text=text, advice=advice)


def _counted(count: int, what: str) -> str:
    return f"1 {what} waits" if count == 1 else f"{count} {what}s wait"


def _of_run(store: Store, info: ThreadInfo, inputs: int) -> Iterator[WhyLine]:
    match claimed(info).status:
        case "completed" | "cancelled" as ended if inputs:
            yield _line("inputs", f"its last run is {ended}, and {_counted(inputs, 'input')}")
        case "completed":
            yield _line("ended", "nothing is left to run", "invoke or submit it with a new input")
        case "cancelled":
            yield _line("cancelled", "its run was cancelled", "retry or resume it")
        case "failed":
            yield _failed(store, info)
        case "interrupted" if info.questions:
            said = "an answer" if info.questions == 1 else f"{info.questions} answers"
            yield _line("asks", f"it waits for {said}", "show has the questions, answer answers")
        case "interrupted":
            yield _line("interrupted", "it stopped at a node of interrupt_before", "resume it")
        case "running":
            yield from _running(store, info)
        case _:
            if children := joined_children(info):
                said = f"it waits for the end of child {quoted(*children)}"
                yield _line("joins", said, "ask why of that thread")
            if len(children) < len(info.waiting_topics):
                given = (topic for topic, _ in info.waiting_topics if not topic.startswith("__"))
                topics = " or ".join(map(quoted, given))
                yield _line("receives", f"it waits for a message of topic {topics}", "send it one")
            for turn in store.buckets.waiting(*_marks(info)) if store.buckets else ():
                where = f"bucket {quoted(turn.bucket)}, in {turn.wait:.0f} s"
                yield _line(
                    "turn",
                    f"it waits for its turn at {where}",
                    "milecastle queue bucket changes its rate",
                )
            if not info.lane and info.wake_at is not None:
                yield _line("not-due", f"it sleeps until {seconds(moment(info.wake_at))}", "resume")


def _marks(info: ThreadInfo) -> tuple[str, str]:
    return info.key.tenant, marks_of(info.key)


def _failed(store: Store, info: ThreadInfo) -> WhyLine:
    failure = store.failure(info.key, info.run_id)
    if failure is not None and failure.error_type == "WorkersLost":
        said = f"held after {failure.attempt} losses: each worker that ran it was lost"
        return _line("held", said, "find out why its process ends, then retry it")
    said = f"its run failed with {failure.error_type}" if failure else "its run failed"
    if failure and failure.node:
        said += f" at node '{failure.node}'"
    if info.due_at is not None:
        return _line("failed", f"{said}, and is to be retried")
    return _line("failed", f"{said}, and is not retried by itself", "fix the cause, then retry it")


def _running(store: Store, info: ThreadInfo) -> Iterator[WhyLine]:
    run = store.run(info.key, info.run_id)
    if not info.worker:
        lost = why_lost(store, run) if run and info.due_at is None else ""
        if lost:
            yield _line("lost", f"its process does not run it: {lost}", "resume it")
        elif info.due_at is None:
            yield _line("running", "it runs in the process that called it")
        return
    head = store.head(info.key)
    nodes = running_now(store, info.key, head, "running")[1] if head else ()
    workers = store.workers() if offers(store, ClaimStore) else ()
    worker = next((one for one in workers if one.id == info.worker), None)
    advice = "another worker takes it over, if one runs"
    if worker and not worker.is_gone and not serves(store, worker, info.key):
        said = f"its worker {info.worker} does not serve {_home(store, info)}, which has it now"
        yield _line("lost", said, advice)
        return
    if worker is None or worker.is_gone:
        since = f"{worker.silent:.0f} s" if worker else "longer than it is remembered"
        yield _line("silent", f"its worker {info.worker} has been silent for {since}", advice)
    elif run and run.owner == worker.owner and (lost := why_lost(store, run)):
        yield _line("lost", f"its worker {info.worker} does not run it: {lost}", advice)
    else:
        yield _line("running", f"worker {info.worker} runs it, at {names(nodes)}")


def _of_queue(store: ClaimStore, info: ThreadInfo) -> Iterator[WhyLine]:
    now, due_at = store.now(), info.due_at or 0
    if due_at > now:
        yield _line("not-due", f"it is not due until {seconds(moment(due_at))}")
        return
    depths, workers, limits = store.depths(), store.workers(), _limits_of(store, info)
    held = [*_unserved(store, info, workers), *_limited(limits, depths)]
    held += _limited_by_key(store, info, limits)
    if held:
        yield from held
        return
    waited = f"it has been due for {(now - due_at) / 1_000_000:.0f} s"
    serving = [
        one
        for one in workers
        if info.lane in one.lanes and not one.is_gone and serves(store, one, info.key)
    ]
    if all(one.running >= one.capacity for one in serving):
        advice = "start more workers, or raise --concurrency"
        yield _line("busy", f"{waited}, and every worker of its graph is full", advice)
        return
    others = sum(one.due for one in depths if one.lane == info.lane) - 1
    more = f"; {others} other threads of its graph are due" if others > 0 else ""
    yield _line("due", f"{waited}, and a worker is about to claim it{more}")


def _home(store: Store, info: ThreadInfo) -> str:
    return f"database {quoted(store.cells.of(info.key))}" if store.cells else "its database"


def _unserved(store: Store, info: ThreadInfo, workers: Sequence[WorkerInfo]) -> Iterator[WhyLine]:
    everywhere = [one for one in workers if not one.is_gone]
    alive = [one for one in everywhere if serves(store, one, info.key)]
    graph = graph_of(info.lane)
    if store.cells and not alive and everywhere:
        advice = f"start one: milecastle worker --databases {store.cells.of(info.key)}"
        said = f"no running worker serves {_home(store, info)}, which has it"
        yield _line("no-worker", said, advice)
        return
    fits = [one for one in alive if info.lane in one.lanes]
    if fits and all(one.draining for one in fits):
        yield _line("no-worker", "every worker of its graph is about to stop", "start one")
    elif not fits and any(graph_of(lane) == graph for one in alive for lane in one.lanes):
        version = info.lane.rpartition("@")[2][:8]
        said = f"no worker serves graph {quoted(graph)} in version {version}, only in others"
        yield _line("no-version", said, "check --threads says whether it fits the current code")
    elif not fits:
        advice = f"start one: milecastle worker, with the app of graph {quoted(graph)}"
        said = f"no worker serves graph {quoted(graph)}"
        if any(info.lane in one.lanes for one in everywhere):
            said += f" in {_home(store, info)}, which has it, only in others"
        yield _line("no-worker", said, advice)


def _limits_of(store: ClaimStore, info: ThreadInfo) -> list[Limit]:
    graphs, tenants = ("", graph_of(info.lane)), ("", info.key.tenant)
    keys = ("", name_of(info.limit_key))
    found = (one for one in store.limits() if one.graph in graphs and one.tenant in tenants)
    return [one for one in found if one.key in keys]


def _limited(limits: Sequence[Limit], depths: Sequence[LaneDepth]) -> Iterator[WhyLine]:
    for limit in limits:
        if limit.key:
            continue
        scope = _scope(limit)
        running = sum(
            one.running
            for one in depths
            if limit.graph in ("", graph_of(one.lane)) and limit.tenant in ("", one.tenant)
        )
        if limit.paused:
            yield _line("paused", f"{scope} is paused", "milecastle queue resume")
        elif limit.concurrency is not None and running >= limit.concurrency:
            said = f"{scope} is at its limit of {limit.concurrency} running threads"
            yield _line("limit", said, "milecastle queue limit changes it")
        elif limit.rate is not None:
            said = f"{scope} may start {limit.rate} threads in {limit.period:g} s"
            yield _line("limit", said, "milecastle queue limit changes it")


def _limited_by_key(
    store: ClaimStore, info: ThreadInfo, limits: Sequence[Limit]
) -> Iterator[WhyLine]:
    for limit in limits:
        if not limit.key:
            continue
        said, advice = f"{_scope(limit)} with key {quoted(info.limit_key)}", "queue limit --key"
        if limit.concurrency is not None:
            running = islice(_running_with(store, info.limit_key, limit), limit.concurrency)
            if sum(1 for _ in running) == limit.concurrency:
                said = f"{said} is at its limit of {limit.concurrency} running threads"
                yield _line("limit", said, f"milecastle {advice} changes it")
                continue
        if limit.rate is not None:
            said = f"{said} may start {limit.rate} threads in {limit.period:g} s"
            yield _line("limit", said, f"milecastle {advice} changes it")


def _running_with(store: ClaimStore, limit_key: str, limit: Limit) -> Iterator[ThreadInfo]:
    for worker in store.workers():
        for key in store.claimed(worker.id):
            info = store.thread(key) if limit.tenant in ("", key.tenant) else None
            if info and info.limit_key == limit_key and limit.graph in ("", graph_of(info.lane)):
                yield info


def _scope(limit: Limit) -> str:
    return f"graph {quoted(limit.graph) if limit.graph else '*'}, tenant " + (
        quoted(limit.tenant) if limit.tenant else "*"
    )


def fleet_troubles(store: ClaimStore) -> list[WhyLine]:
    workers, limits = store.workers(), store.limits()
    alive = [one for one in workers if not one.is_gone]
    found = [
        _line("silent", f"worker {one.id} has been silent for {one.silent:.0f} s", "is it stopped?")
        for one in workers
        if one not in alive
    ]
    found += _unserved_cells(store, alive)
    for depth in store.depths():
        if not depth.due:
            continue
        graph = graph_of(depth.lane)
        said = f"{depth.due} due of graph {quoted(graph)}, tenant {quoted(depth.tenant)}"
        if any(
            limit.paused and limit.graph in ("", graph) and limit.tenant in ("", depth.tenant)
            for limit in limits
        ):
            found.append(_line("paused", f"{said}: paused", "milecastle queue resume"))
        elif not any(depth.lane in one.lanes for one in alive):
            version = depth.lane.rpartition("@")[2][:8]
            text = f"{said}: no worker serves version {version}"
            found.append(_line("no-worker", text, "start a worker with that code"))
        elif depth.oldest > _LATE:
            text = f"{said}: the oldest has waited for {depth.oldest:.0f} s"
            found.append(_line("late", text, "milecastle why THREAD explains one"))
    return found


def _unserved_cells(store: ClaimStore, alive: Sequence[WorkerInfo]) -> Iterator[WhyLine]:
    """Lanes with due threads in a database where no worker serves them, but elsewhere one does."""
    cells = store.cells
    if cells is None or all({*cells.names} <= {*one.databases} for one in alive):
        return
    served = {lane for one in alive for lane in one.lanes}
    for name in cells.names:
        here = {lane for one in alive if name in one.databases for lane in one.lanes}
        due: Counter[str] = Counter()
        for depth in one_cell(cells, [name]).depths():
            due[depth.lane] += depth.due
        for lane in sorted(lane for lane in served - here if due[lane]):
            yield _line(
                "no-worker",
                f"{due[lane]} due of graph {quoted(graph_of(lane))} in database {quoted(name)}: "
                "no running worker serves it there, only in others",
                f"start one: milecastle worker --databases {name}",
            )
