"""Facts for tests: records of runs, failures and nodes that are in order unless told otherwise."""

from __future__ import annotations

from typing import Any

import msgspec.structs

from milecastle.builds.paths import task_hash
from milecastle.builds.plan import NodeFacts
from milecastle.builds.records import FORMAT, NodeCheckpoint
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RESUMABLE, Failure, FailureClass, RunRecord

KEY = ThreadKey("default", "build")


def a_run(run_id: str = "run-1", **changes: Any) -> RunRecord:
    record = RunRecord(
        run_id=run_id,
        key=KEY,
        graph="build",
        fingerprint="f1",
        mode="incremental",
        status="failed",
        retry_count=0,
        previous_run_id=None,
        started_at=1_000_000,
        ended_at=2_000_000,
    )
    return msgspec.structs.replace(record, **changes)


def a_failure(run_id: str = "run-1", failure_class: FailureClass = "execution") -> Failure:
    return Failure(
        run_id=run_id,
        failure_class=failure_class,
        resumable=RESUMABLE[failure_class],
        error_type="RuntimeError",
        message="no",
        traceback=(),
        causes=(),
        attempt=1,
        time=2_000_000,
    )


def a_checkpoint(node: str = "b", **changes: Any) -> NodeCheckpoint:
    """A checkpoint whose task hash is right for what it says."""
    plain = NodeCheckpoint(
        format=FORMAT,
        node=node,
        run_id="run-1",
        exit_code=0,
        task_hash="",
        code_version="c1",
        parameters="p1",
        input="i1",
        seen="",
        inputs={"in.txt": "h1"},
        upstream={},
        outputs={"out.txt": "h2"},
        output_hash=f"o-{node}",
        has_update=False,
        started_at=1,
        ended_at=2,
        expires_at=None,
    )
    changed = msgspec.structs.replace(plain, **changes)
    return msgspec.structs.replace(
        changed,
        task_hash=task_hash(
            node=changed.node,
            code_version=changed.code_version,
            parameters=changed.parameters,
            input=changed.input,
            seen=changed.seen,
            inputs=changed.inputs,
            upstream=changed.upstream,
            outputs=changed.outputs,
        ),
    )


def node_facts(name: str = "b", **changes: Any) -> NodeFacts:
    """A node that is up to date."""
    facts = NodeFacts(
        name=name,
        code_version="c1",
        parameters="p1",
        input="i1",
        inputs={"in.txt": "h1"},
        outputs={"out.txt": "h2"},
        checkpoint=a_checkpoint(name),
    )
    return msgspec.structs.replace(facts, **changes)
