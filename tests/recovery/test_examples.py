"""Every example runs as a script, and no crash changes how its graph ends."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from examples import (
    agent_with_tools,
    approval_with_deadline,
    early_webhook,
    fleet_of_three,
    human_approval,
    looping_graph,
    map_reduce,
    nightly_pipeline,
    parallel_research,
    per_invoke_overrides,
    resume_after_crash,
    steered_agent,
    subgraph_per_customer,
)
from milecastle import App
from milecastle.records import Interrupt
from milecastle.stores.memory import MemoryStore
from milecastle.testing import (
    UNANSWERED,
    CrashMismatch,
    ManualClock,
    TornStore,
    crash_everywhere,
    with_store,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

SAYS = {
    "agent_with_tools": ["tool: booked the 9:14 to Hexham", "model: Rain until noon."],
    "approval_with_deadline": [
        "too late for the lead",
        "1.1:approve/0: timed out\n1.1:approve/1: dora, late, but fine",
    ],
    "early_webhook": [
        "event e-1 was here before; the order is queued\nsleeping: reserved lamp, paid 30\n",
        "completed: reserved lamp, paid 30, shipped with parcel post",
    ],
    "fleet_of_three": [
        "was killed while it had letters",
        *(f"letter-{number}: written, stamped, sent" for number in range(1, 10)),
    ],
    "human_approval": ["interrupted: Refund? {'amount': 30}", "Ann gets 30", "Bob gets 0"],
    "incremental_build": ["first run: 30 executed", "9 executed, 21 reused", "0 executed, 30"],
    "looping_graph": ["good enough after 4 steps", "limit of 20 steps", "stopped at 'polish'"],
    "map_reduce": ["3 documents: wall 3, road 2"],
    "nightly_pipeline": [
        "sleeping until 16 November 02:00",
        "too early: it is sleeping",
        "published",
    ],
    "openai_agents_approval": ["You get 30 back. user function_call function_call_output message"],
    "order_with_shipments": [
        "completed: parcel with lamp; parcel with rope\n",
        "ship.0 completed\nship.1 completed\n",
    ],
    "parallel_research": ["two books on milecastles; a letter", "an opinion on milecastles"],
    "per_invoke_overrides": ["the default of 10 steps: 20 left", "0 left after 30"],
    "pydantic_ai_agent": ["calling trains", "Rain until noon. You are on the 9:14."],
    "resume_after_crash": [
        "killed",
        "had completed: total 20, priced, reserved lamp, reserved rope",
    ],
    "remembering_agent": [
        "ann, call 2: I know lamp is broken",
        "erased: 2 left: [('customers', 'bob'), ('customers', 'bob', 'facts')]",
    ],
    "steered_agent": [
        "answer: {'answers': ['I found trains to Hexham and trains back on Sunday']}",
        "completed unread: 0",
    ],
    "support_desk": ["Call refund? {", "paid 30 for order 1041", "used 540 tokens; paid [30]"],
    "subgraph_per_customer": ["Wait for Bob?", "Ann: thank you, Bob: pay now, Cid: thank you"],
}

GRAPHS: dict[str, tuple[App[Any], dict[str, Any]]] = {
    "agent_with_tools": (agent_with_tools.app, {"messages": [{"role": "user", "text": "?"}]}),
    "approval_with_deadline": (approval_with_deadline.app, {"amount": 30}),
    "early_webhook": (early_webhook.app, {"item": "lamp"}),
    "fleet_of_three": (fleet_of_three.graph.compile(), {"to": "Ann"}),
    "human_approval": (human_approval.graph.compile(), {"customer": "Ann", "amount": 30}),
    "looping_graph": (looping_graph.app, {"quality": 0, "gain": 30}),
    "map_reduce": (map_reduce.app, {"names": []}),
    "nightly_pipeline": (nightly_pipeline.app, {"day": datetime(2126, 11, 15, 12, tzinfo=UTC)}),
    "parallel_research": (parallel_research.app, {"question": "milecastles"}),
    "per_invoke_overrides": (per_invoke_overrides.app, {"left": 5}),
    "resume_after_crash": (resume_after_crash.graph.compile(), {"items": ["lamp", "rope"]}),
    "steered_agent": (steered_agent.app, {"said": ["to Hexham"]}),
    "subgraph_per_customer": (subgraph_per_customer.app, {"customers": ["Ann", "Bob", "Cid"]}),
}


def approve(asked: Interrupt) -> Any:
    """Yes, but the lead of the example with a deadline is away."""
    assert asked.answer == {"type": "boolean"}
    return UNANSWERED if asked.question == "Lead: pay?" else True


def send(topics: tuple[str, ...]) -> list[tuple[str, Any]]:
    values = {"paid": {"id": "e-1", "amount": 30}, "shipped": "post"}
    return [(topic, values[topic]) for topic in topics]


@pytest.fixture(autouse=True)
def quick_and_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No example waits for a clock, and a person writes to the agent during its first step."""

    def steered(said: str) -> str:
        store = steered_agent.app.store
        for info in store.threads("default"):
            steered_agent.app.send(info.key, "back on Sunday", "user", key="second")
        return f"trains {said}"

    monkeypatch.setattr(steered_agent, "look_up", steered)
    monkeypatch.setattr(fleet_of_three, "STEP_SECONDS", 0)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs_as_a_script(name: str) -> None:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words in SAYS[name]:
        assert words in done.stdout


def test_every_example_is_crashed() -> None:
    """``crash_everywhere`` also calls again after the end: no work may be done twice.

    The build has files and no thread: ``tests/process/test_recovery_kills.py`` kills it, and calls
    it again after the end. The agents of other libraries are killed at each call by
    ``tests/process/test_agent_kills.py``. Children need workers of their own:
    ``test_crash_everywhere_with_children.py``. The ids of an agent's messages depend on its thread:
    ``test_crash_everywhere_with_agents.py`` crashes agents, and compares all else. Long-term memory
    outlives the thread of each crash: ``tests/process/test_memory_kills.py`` counts its versions.
    """
    assert {*EXAMPLES} - {*GRAPHS} == {
        "incremental_build",
        "openai_agents_approval",
        "order_with_shipments",
        "pydantic_ai_agent",
        "remembering_agent",
        "support_desk",
    }


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_crash_changes_how_the_example_ends(name: str, seed: int) -> None:
    """Tried: messages consumed on receipt: the webhook and the steered agent lose one."""
    app, given = GRAPHS[name]
    report = crash_everywhere(app, given, seed=seed, answer=approve, send=send)
    assert report.crashes == 2 * report.effects > 0


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_commits_that_are_not_atomic_are_found_out_with_the_example(name: str) -> None:
    app, given = GRAPHS[name]
    torn = TornStore(MemoryStore(), late={"runs"})
    with pytest.raises(CrashMismatch):
        crash_everywhere(
            with_store(app, torn, clock=ManualClock()), given, answer=approve, send=send
        )


def test_the_examples_are_short() -> None:
    """Those in `moving/` are not: they are whole applications (tests/process/test_moving.py)."""
    sizes = {
        name: len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) for name in EXAMPLES
    }
    sizes.pop("incremental_build")  # thirty nodes, and the scripts of a whole build
    assert {name: size for name, size in sizes.items() if size >= 80} == {}


def test_the_readme_lists_every_example() -> None:
    readme = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert [name for name in EXAMPLES if f"[{name}.py]({name}.py)" not in readme] == []
