from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec.structs

from milecastle.app.results import Result
from milecastle.app.runs.submission import Handle
from milecastle.graph.schedules import ScheduleInfo
from milecastle.model.actor import AnswerRecord
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.ports.buckets import BucketLevel
from milecastle.ports.limits import Limit
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.support.copying import copied
from milecastle.views.documents import (
    AnswerLine,
    BucketLine,
    CheckpointLine,
    FailureLine,
    HeldLine,
    LaneLine,
    LimitLine,
    QuestionLine,
    RunDocument,
    RunLine,
    ScheduleLine,
    SubmitDocument,
    TaskFailureLine,
    ThreadLine,
    WorkerLine,
)
from milecastle.views.values import plain


def checkpoint_line(known: CheckpointMetadata) -> CheckpointLine:
    return copied(CheckpointLine, known, timestamp=moment(known.timestamp))


def answer_line(record: AnswerRecord) -> AnswerLine:
    by = record.by
    return AnswerLine(
        question=record.question,
        answer=plain(record.answer),
        by=by.id if by else None,
        how=by.how if by else None,
        on_behalf_of=by.on_behalf_of if by else None,
        reason=by.reason if by else "",
        time=moment(record.time),
        timed_out=record.timed_out,
        seq=record.seq,
        run_id=record.run_id,
        digest=record.digest,
    )


def thread_line(info: ThreadInfo) -> ThreadLine:
    return ThreadLine(
        thread=info.key.thread,
        status=info.status,
        graph=info.graph,
        run_id=info.run_id,
        started_at=moment(info.started_at),
        ended_at=moment(info.ended_at),
        wake_at=moment(info.wake_at),
        questions=info.questions,
    )


def run_line(run: RunRecord, failure: Failure | None) -> RunLine:
    return copied(
        RunLine,
        run,
        thread=run.key.thread,
        started_at=moment(run.started_at),
        ended_at=moment(run.ended_at),
        failure=_failure(failure) if failure else None,
    )


def _failure(failure: Failure) -> FailureLine:
    tasks = tuple(copied(TaskFailureLine, task) for task in failure.tasks)
    return copied(FailureLine, failure, time=moment(failure.time), tasks=tasks)


def question_lines(interrupts: Iterable[Interrupt]) -> tuple[QuestionLine, ...]:
    return tuple(
        QuestionLine(
            id=one.id,
            node=one.node,
            question=plain(one.question),
            show=plain(one.show),
            answer=plain(one.answer),
            refused=one.refused,
            until=moment(one.until),
            digest=one.digest,
        )
        for one in interrupts
        if one.asks
    )


def run_document(result: Result[Any]) -> RunDocument:
    return RunDocument(
        tenant=result.thread.tenant if result.thread else None,
        thread=result.thread.thread if result.thread else None,
        run_id=result.run_id,
        status=result.status,
        nodes=result.nodes,
        next=result.next,
        step=result.step,
        timestamp=moment(result.timestamp),
        wake_at=moment(result.wake_at),
        questions=question_lines(result.interrupts),
        state=plain(result.state if result.shown is None else dict(result)),
        reused=result.reused,
    )


def submit_document(handle: Handle[Any]) -> SubmitDocument:
    return SubmitDocument(
        tenant=handle.thread.tenant,
        thread=handle.thread.thread,
        run_id=handle.run_id,
        status=handle.status,
        reused=handle.reused,
        seq=handle.seq,
    )


def run_row(line: RunLine) -> list[str]:
    failure = line.failure
    why = f"{failure.error_type} at {failure.node or '-'}" if failure else ""
    if failure and failure.tasks:
        why += f" and {len(failure.tasks) - 1} more"
    return [
        line.thread,
        line.run_id,
        line.status,
        line.graph or "-",
        str(line.retry_count),
        seconds(line.started_at),
        seconds(line.ended_at),
        why,
    ]


def seconds(time: str | None) -> str:
    return f"{time[:19].replace('T', ' ')}Z" if time else "-"


def names(found: Sequence[str]) -> str:
    return ", ".join(found) or "-"


def moment(time: int | datetime | None) -> Any:
    """A time as ISO 8601 in UTC, to the second for ``str``; ``None`` stays."""
    if time is None:
        return None
    if isinstance(time, int):
        time = datetime.fromtimestamp(time / 1_000_000, UTC)
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def worker_line(worker: WorkerInfo) -> WorkerLine:
    return WorkerLine(
        id=worker.id,
        host=worker.owner.host,
        pid=worker.owner.pid,
        lanes=worker.lanes,
        running=worker.running,
        capacity=worker.capacity,
        draining=worker.draining,
        silent=round(worker.silent, 3),
        silent_after=worker.silent_after,
        started_at=moment(worker.started_at),
        databases=worker.databases,
    )


def worker_row(line: WorkerLine) -> list[str]:
    state = " (draining)" if line.draining else ""
    lanes = ", ".join(lane.partition("@")[0] for lane in line.lanes)
    running = f"{line.running}/{line.capacity}{state}"
    heard = f"{line.silent:.1f} s"
    return [line.id, line.host, str(line.pid), lanes, running, heard, line.started_at[:19]]


def held_line(
    worker: WorkerInfo,
    key: ThreadKey,
    head: Entry,
    nodes: tuple[str, ...],
    now: int,
    stuck_after: float,
) -> HeldLine:
    seconds = max(0, now - head.created_at) / 1_000_000
    is_lost, is_long = worker.is_gone, seconds >= stuck_after
    return HeldLine(
        tenant=key.tenant,
        thread=key.thread,
        worker=worker.id,
        nodes=nodes,
        seconds=round(seconds, 3),
        state="lost" if is_lost else "long" if is_long else "running",
    )


def held_row(line: HeldLine) -> list[str]:
    since = f"{line.seconds:.0f} s"
    return [line.thread, line.tenant, names(line.nodes), since, line.state, line.worker]


def lane_line(depth: LaneDepth, workers: Sequence[WorkerInfo]) -> LaneLine:
    graph, _, fingerprint = depth.lane.rpartition("@")
    return LaneLine(
        graph=graph,
        fingerprint=fingerprint,
        tenant=depth.tenant,
        due=depth.due,
        later=depth.later,
        running=depth.running,
        oldest=round(depth.oldest, 3),
        workers=sum(depth.lane in worker.lanes for worker in workers),
    )


def lane_row(line: LaneLine) -> list[str]:
    counts = [str(line.due), str(line.later), str(line.running)]
    waited = [f"{line.oldest:.1f} s", str(line.workers) if line.workers else "none"]
    return [line.graph, line.fingerprint[:8], line.tenant, *counts, *waited]


def schedule_line(info: ScheduleInfo) -> ScheduleLine:
    schedule = info.schedule
    return copied(
        ScheduleLine,
        info,
        name=schedule.name,
        when=schedule.described,
        overlap=schedule.overlap,
        catch_up=schedule.catch_up,
        next=moment(info.next),
    )


def schedule_row(line: ScheduleLine) -> list[str]:
    last = line.last.rpartition("@")[2] or "-"
    counts = [str(line.fired), str(line.skipped), str(line.missed)]
    return [line.name, line.when, line.status, seconds(line.next), last, *counts]


def bucket_line(level: BucketLevel, now: int) -> BucketLine:
    bucket = level.bucket
    return BucketLine(
        **msgspec.structs.asdict(bucket),
        left=level.left(now),
        waiting=level.waiting,
        wait=level.backlog(now),
    )


def bucket_row(line: BucketLine) -> list[str]:
    rate = f"{line.rate} in {line.period:g} s"
    left = f"{line.left} of {line.burst}"
    wait = f"{line.wait:.0f} s" if line.waiting else "-"
    return [line.name, line.tenant or "*", rate, left, str(line.waiting), wait]


def limit_line(limit: Limit) -> LimitLine:
    return LimitLine(**msgspec.structs.asdict(limit))


def limit_row(line: LimitLine) -> list[str]:
    count = "-" if line.concurrency is None else str(line.concurrency)
    rate = "-" if line.rate is None else f"{line.rate} in {line.period:g} s"
    scope = [line.graph or "*", line.tenant or "*", line.key or "-"]
    return [*scope, count, rate, "yes" if line.paused else "-"]
