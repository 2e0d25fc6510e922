from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec.structs

from milecastle.builds.plan import Plan
from milecastle.builds.records import NodeCheckpoint
from milecastle.builds.workspace import Workspace
from milecastle.errors import InvalidRequest
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.views.documents import (
    FileShowDocument,
    NodeLine,
    PlanDocument,
    PlanLine,
    ThreadLine,
)
from milecastle.views.lines import moment, run_line, thread_line


class FileThreads:
    def __init__(self, workspace: Workspace, tenant: str) -> None:
        self._workspace = workspace.recorder()
        self._tenant = tenant

    def runs(self, thread: str | None = None, limit: int | None = None) -> list[RunRecord]:
        by_thread: dict[str, list[RunRecord]] = {}
        for record in self._workspace.runs([]):
            if record.key.tenant == self._tenant and thread in (None, record.key.thread):
                by_thread.setdefault(record.key.thread, []).append(record)
        return [
            record
            for _, records in sorted(by_thread.items())
            for record in sorted(records, key=_age, reverse=True)[:limit]
        ]

    def recent(self, before: str | None) -> Iterator[RunRecord]:
        found = self._workspace.runs([], newest=True, before=before)
        return (one for one in found if one.key.tenant == self._tenant)

    def run(self, run_id: str) -> RunRecord | None:
        found = self._workspace.run(run_id)
        return found if found is not None and found.key.tenant == self._tenant else None

    def threads(self, status: RunStatus | None, after: str | None) -> list[ThreadLine]:
        lines = [
            msgspec.structs.replace(thread_line(ThreadInfo.of(record)), kind="files")
            for record in self.runs(limit=1)
            if after is None or record.key.thread > after
        ]
        return [line for line in lines if status in (None, line.status)]

    def failure(self, record: RunRecord) -> Failure | None:
        return self._workspace.failure(record.run_id)

    def find(self, thread: str, run_id: str = "") -> RunRecord | None:
        """A thread's newest run, or the one whose id starts with this prefix, or ``None``.

        Raises:
            InvalidRequest: no run, or several, have an id with this prefix.
        """
        runs = self.runs(thread)
        found = [record for record in runs if record.run_id.startswith(run_id)]
        if not runs or not run_id:
            return runs[0] if runs else None
        if len(found) != 1:
            how_many = f"{len(found)} runs" if found else "no run"
            raise InvalidRequest(
                f"thread '{thread}' has {how_many} whose id begins with '{run_id}'"
            )
        return found[0]

    def show_document(self, record: RunRecord) -> FileShowDocument:
        nodes = sorted(self._nodes(record), key=lambda node: node.ended_at)
        return FileShowDocument(
            tenant=self._tenant,
            thread=record.key.thread,
            status=record.status,
            run=run_line(record, self.failure(record)),
            nodes=tuple(map(_node_line, nodes)),
        )

    def history(self, thread: str, limit: int | None) -> tuple[NodeLine, ...]:
        made = [
            node
            for record in self.runs(thread)
            for node in self._nodes(record)
            if node.run_id == record.run_id
        ]
        made.sort(key=lambda node: (node.ended_at, node.node), reverse=True)
        return tuple(map(_node_line, made[:limit]))

    def _nodes(self, record: RunRecord) -> Iterable[NodeCheckpoint]:
        return self._workspace.checkpoints(record.run_id, []).values()


def plan_document(thread: str, plan: Plan) -> PlanDocument:
    lines = tuple(
        PlanLine(
            node=one.node,
            action=one.action,
            reasons=tuple(map(str, one.reasons)),
            restore=one.restore,
        )
        for one in plan.decisions.values()
    )
    return PlanDocument(
        thread=thread,
        mode=plan.mode,
        refused=tuple(map(str, plan.verdict.reasons)),
        previous_run_id=plan.previous_run_id,
        nodes=lines,
    )


def _age(record: RunRecord) -> tuple[int, str]:
    return (record.started_at, record.run_id)


def _node_line(node: NodeCheckpoint) -> NodeLine:
    return NodeLine(
        node=node.node,
        run_id=node.run_id,
        started_at=moment(node.started_at),
        ended_at=moment(node.ended_at),
        outputs=node.outputs,
    )
