"""Errors: one tree, each with its code, readable, and whole after a journey between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from milecastle import errors
from milecastle.errors import (
    AlreadyAnswered,
    AttemptsExhausted,
    CodecError,
    CommandFailed,
    Conflict,
    Corrupted,
    CycleDetected,
    DefinitionError,
    EncryptionError,
    ExecutionError,
    FileRefused,
    FormatTooNew,
    InvalidAnswer,
    InvalidRequest,
    InvalidUpdate,
    KeyNotFound,
    MailboxFull,
    MaxStepsExceeded,
    MemoryChanged,
    MilecastleError,
    NodeTimeout,
    NoKeyring,
    NoObjects,
    NotAsked,
    Place,
    PlaintextRefused,
    Problem,
    ProcessLost,
    RecoveryError,
    RequestRefused,
    ResumeRefused,
    RoutingError,
    RunCancelled,
    RunError,
    RunFailed,
    RunInProgress,
    RunTimeout,
    ShardMoved,
    StepFailed,
    StoreError,
    ThreadNotFound,
    TimedOut,
    Unavailable,
    UnserializableState,
    UntrustedFile,
)
from milecastle.model.run import Owner

OWNER = Owner(host="h", boot_id="b", pid=7, started="1")
SINCE = datetime(2026, 11, 16, tzinfo=UTC)
WHERE = {"thread": "demo", "run_id": "0190"}


def of_run(error: RunError) -> RunError:
    """The error with the run that it ended, which the engine adds."""
    error.thread, error.run_id = WHERE["thread"], WHERE["run_id"]
    return error


EXAMPLES: list[tuple[MilecastleError, dict[str, Any], str]] = [
    (MilecastleError("it broke"), {"message": "it broke"}, "it broke"),
    (
        DefinitionError([Problem("MC110", "no node", Place("demo.py", 3), "add it")]),
        {"problems": (Problem("MC110", "no node", Place("demo.py", 3), "add it"),)},
        "demo.py:3: MC110 no node (add it)",
    ),
    (RunError("it broke", **WHERE), WHERE, "it broke"),
    (
        ExecutionError(
            "node 'a' failed",
            node="a",
            step=2,
            path=["b", "a"],
            state={"secret": 1},
            cause=ValueError("why"),
            **WHERE,
        ),
        {"node": "a", "step": 2, "path": ("b", "a"), "state": {"secret": 1}, **WHERE},
        "node 'a' failed",
    ),
    (
        of_run(MaxStepsExceeded(max=5, reached=6)),
        {"max": 5, "reached": 6, **WHERE},
        "max_steps=5",
    ),
    (
        of_run(CycleDetected(node="a", recent=["a", "b"], strict=True)),
        {"node": "a", "recent": ("a", "b"), "strict": True, **WHERE},
        "a -> b",
    ),
    (
        CycleDetected(node="a", recent=["a"]),
        {"strict": False, "thread": None},
        "the state did not change",
    ),
    (
        of_run(StepFailed("charge", "ValueError", "no card")),
        {"step_name": "charge", "error_type": "ValueError", "reason": "no card"},
        "step 'charge' failed with ValueError: no card",
    ),
    (
        of_run(ProcessLost(node="a", how="was killed by signal 9")),
        {"node": "a", "how": "was killed by signal 9", **WHERE},
        "signal 9",
    ),
    (of_run(NodeTimeout(node="a", seconds=1.5)), {"node": "a", "seconds": 1.5, **WHERE}, "1.5 s"),
    (of_run(RunTimeout(seconds=2)), {"seconds": 2, **WHERE}, "longer than 2 s"),
    (
        of_run(TimedOut(node="a", deadline=datetime(2026, 1, 2, tzinfo=UTC))),
        {"node": "a", "deadline": datetime(2026, 1, 2, tzinfo=UTC), **WHERE},
        "node 'a' waited until 2026-01-02T00:00:00+00:00",
    ),
    (RunCancelled(**WHERE), WHERE, "resume() continues from there"),
    (
        RunFailed("it failed", failure_type="KeyError", node="a", **WHERE),
        {"failure_type": "KeyError", "node": "a", **WHERE},
        "it failed",
    ),
    (InvalidUpdate("not a dict", node="a", key="k"), {"node": "a", "key": "k"}, "not a dict"),
    (RoutingError("nowhere", node="a"), {"node": "a"}, "nowhere"),
    (
        of_run(AttemptsExhausted(node="a", attempts=3)),
        {"node": "a", "attempts": 3, **WHERE},
        "node 'a' was started 3 times and never finished",
    ),
    (
        CommandFailed("the command of 'a' failed", command="make", exit_code=2, output="secret"),
        {"command": "make", "exit_code": 2, "output": "secret"},
        "the command of 'a' failed",
    ),
    (
        FileRefused("not made", file="out.txt", node="a"),
        {"file": "out.txt", "node": "a"},
        "not made",
    ),
    (RecoveryError("cannot continue"), {}, "cannot continue"),
    (
        ResumeRefused("demo", ["one", "two"]),
        {"thread": "demo", "reasons": ("one", "two")},
        "thread 'demo' was not resumed: one; two",
    ),
    (
        RequestRefused("no scope", status=403, problem="MC602"),
        {"status": 403, "problem": "MC602"},
        "no scope",
    ),
    (InvalidRequest("no such thread"), {}, "no such thread"),
    (
        ThreadNotFound(tenant="t", thread="demo", advice="start it"),
        {"tenant": "t", "thread": "demo"},
        "there is no thread 'demo' in tenant 't': start it",
    ),
    (InvalidAnswer("$ should be boolean"), {}, "$ should be boolean"),
    (AlreadyAnswered("it was answered"), {}, "it was answered"),
    (NotAsked("it is not asked yet"), {}, "it is not asked yet"),
    (MailboxFull("too many messages"), {}, "too many messages"),
    (StoreError("full"), {}, "full"),
    (
        Conflict(tenant="t", thread="demo", expected=3, head=4),
        {"tenant": "t", "thread": "demo", "expected": 3, "head": 4},
        "expected to append seq 3, but the head is already at seq 4",
    ),
    (
        RunInProgress(
            tenant="t",
            thread="demo",
            head=4,
            run_id="r1",
            owner=OWNER,
            since=SINCE,
            who="process 7",
        ),
        {
            "tenant": "t",
            "thread": "demo",
            "expected": 5,
            "head": 4,
            "run_id": "r1",
            "owner": OWNER,
            "since": SINCE,
        },
        "thread 'demo' is in progress: run r1, driven by process 7 since 2026-11-16T00:00:00+00:00",
    ),
    (Corrupted("a bit flipped", place="file:3"), {"place": "file:3"}, "a bit flipped at file:3"),
    (Unavailable("closed"), {}, "closed"),
    (
        MemoryChanged(namespace=("users",), key="tea", place=(b"users\0", "tea")),
        {"namespace": ("users",), "key": "tea", "place": (b"users\0", "tea")},
        "item 'tea' of namespace ('users',) no longer has the version that if_version= names",
    ),
    (
        ShardMoved(tenant="t", thread="demo", shard=7, database="a", version=2, destination="b"),
        {"shard": 7, "database": "a", "version": 2, "destination": "b"},
        "thread 'demo' is in shard 7, which is not in database 'a': moved to database 'b', map",
    ),
    (
        FormatTooNew(found=9, supported=1, place="row 3"),
        {"found": 9, "supported": 1, "place": "row 3"},
        "row 3 has format version 9",
    ),
    (CodecError("bad byte"), {}, "bad byte"),
    (
        UnserializableState("a lock", path="$.docs[3]", type_name="Lock", node="a"),
        {"reason": "a lock", "path": "$.docs[3]", "type_name": "Lock", "node": "a"},
        "the value at $.docs[3] (returned by node 'a') cannot be stored: a lock",
    ),
    (UntrustedFile("not signed"), {}, "not signed"),
    (NoObjects("elsewhere"), {}, "elsewhere"),
    (EncryptionError("moved", thread="demo", seq=3), {"thread": "demo", "seq": 3}, "moved"),
    (NoKeyring("encrypted", seq=3), {"thread": None, "seq": 3}, "encrypted"),
    (KeyNotFound("erased", thread="demo"), {"thread": "demo", "seq": 0}, "erased"),
    (PlaintextRefused("in the clear", thread="demo", seq=3), {"seq": 3}, "in the clear"),
]


def every_class() -> list[type[MilecastleError]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, MilecastleError)
    ]


def test_there_is_an_example_of_every_error() -> None:
    assert {type(error) for error, _, _ in EXAMPLES} == set(every_class())


@pytest.mark.parametrize(
    ("error", "data", "text"), EXAMPLES, ids=lambda value: type(value).__name__
)
def test_an_error_says_what_happened_and_its_code(
    error: MilecastleError, data: dict[str, Any], text: str
) -> None:
    assert text in str(error)
    why = ": why" if isinstance(error, ExecutionError) else ""
    assert str(error).endswith(f"[{error.code}]{why}")
    assert {name: getattr(error, name) for name in data} == data


@pytest.mark.parametrize(
    ("error", "data", "text"), EXAMPLES, ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(
    error: MilecastleError, data: dict[str, Any], text: str, protocol: int
) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert (str(back), back.args) == (str(error), error.args)
    assert {name: getattr(back, name) for name in data} == data
    assert vars(back).keys() == vars(error).keys()


def test_a_cause_and_a_note_survive_pickling() -> None:
    error = ExecutionError(
        "failed", node="a", step=1, path=[], state=None, cause=ValueError("why", 3)
    )
    error.add_note("in the same step b failed as well")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back.cause), back.cause.args) == (ValueError, ("why", 3))
    assert back.__notes__ == ["in the same step b failed as well"]


def test_a_copy_is_whole_as_well() -> None:
    error = Conflict(tenant="t", thread="demo", expected=3, head=4)
    assert vars(copy.copy(error)) == vars(error)


def test_the_state_never_appears_in_a_message() -> None:
    error = ExecutionError(
        "node 'a' failed", node="a", step=1, path=[], state={"k": "hidden"}, cause=ValueError()
    )
    assert "hidden" not in str(error)
    assert "hidden" not in repr(error)


def test_every_class_has_its_own_code() -> None:
    codes = [cls.code for cls in every_class()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"MC\d{3}", code) for code in codes)
    assert all("code" in vars(cls) for cls in every_class())


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """The tree in the docstring: the parent of each class, and its code if one is drawn."""
    found: dict[str, tuple[str | None, str | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    ((?:[|`]   |[|`]-- |    )*)([A-Z]\w+)(?: +(MC\d+)  .+)?", line)
        if match is None:
            continue
        depth = len(match[1])
        above = [entry for entry in above if entry[0] < depth]
        found[match[2]] = (above[-1][1] if above else None, match[3])
        above.append((depth, match[2]))
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    tree = drawn_tree()
    assert set(tree) == {cls.__name__ for cls in every_class()}
    for cls in every_class():
        parent, code = tree[cls.__name__]
        expected = None if cls is MilecastleError else cls.__bases__[0].__name__
        assert parent == expected
        assert code in (None, cls.code)
    leaves = {cls for cls in every_class() if not cls.__subclasses__()}
    assert all(tree[cls.__name__][1] for cls in leaves)


def test_every_error_is_exported() -> None:
    names = {cls.__name__ for cls in every_class()}
    assert names == set(errors.__all__) - {"Place", "Problem"}


def test_a_wrong_request_is_not_a_failed_recovery() -> None:
    """Broken on purpose: ``InvalidRequest`` under ``RecoveryError``."""
    assert InvalidRequest.__bases__ == (MilecastleError,)
    assert not issubclass(InvalidRequest, RecoveryError)
