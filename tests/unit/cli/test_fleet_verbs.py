"""The verbs of the fleet, with documents and tables."""

from __future__ import annotations

import socket

import pytest

from milecastle.model.run import Owner
from milecastle.ports.claims import system_time
from milecastle.ports.workers import WorkerInfo
from milecastle.stores.sqlite import SqliteStore
from milecastle.views.documents import (
    QueueDocument,
    SubmitDocument,
    WhyDocument,
    WorkerDocument,
    WorkersDocument,
)
from tests.unit.cli.commands import DEMO, Desk


def submitted(desk: Desk, thread: str = "demo") -> SubmitDocument:
    arguments = ("submit", "demo:app", "--thread", thread, "--input", '{"topic": "walls"}')
    return desk.json(SubmitDocument, *arguments)


def test_queue_lists_what_is_due_by_graph_and_tenant(desk: Desk) -> None:
    """Fails if a submitted run has no time, or the wrong lane."""
    assert submitted(desk).status == "queued"
    submitted(desk, "other")
    (lane,) = desk.json(QueueDocument, "queue").lanes
    assert (lane.tenant, lane.due, lane.later, lane.running) == ("default", 2, 0, 0)
    assert lane.oldest >= 0
    assert "OLDEST" in desk.out("queue")


def test_a_worker_runs_what_is_due_and_ends_when_idle(desk: Desk) -> None:
    first = submitted(desk)
    assert submitted(desk).run_id == first.run_id
    desk.call("worker", "demo:app", "--until-idle", "--poll", "0.05")
    assert "interrupted" in desk.out("ls")
    assert "no worker serves" in desk.call("workers").stderr
    assert desk.json(WorkersDocument, "workers").workers == ()
    (lane,) = desk.json(QueueDocument, "queue").lanes or (None,)
    assert lane is None or lane.due == 0


def test_a_worker_that_stopped_is_a_document_and_a_living_one_is_listed(desk: Desk) -> None:
    submitted(desk)
    arguments = ("worker", "demo:app", "--until-idle", "--silent-after", "5")
    document = desk.json(WorkerDocument, *arguments)
    store = SqliteStore("runs.db")
    owner = Owner(host="wall", boot_id="", pid=7, started="")
    info = WorkerInfo(id="one", owner=owner, lanes=("demo@1",), started_at=0, draining=True)
    store.beat(info)
    store.close()
    assert document.id != "one"
    (line,) = desk.json(WorkersDocument, "workers").workers
    assert (line.id, line.host, line.draining) == ("one", "wall", True)
    assert "(draining)" in desk.out("workers")


def test_retry_hands_a_cancelled_thread_over_again(desk: Desk) -> None:
    submitted(desk)
    desk.call("cancel", "demo")
    assert desk.json(QueueDocument, "queue").lanes == ()
    assert "nothing is queued" in desk.call("queue").stderr
    assert "is queued" in desk.out("retry", "demo", "--app", "demo:app")
    desk.call("worker", "demo:app", "--until-idle", "--poll", "0.05")
    assert "interrupted" in desk.out("ls")


def test_submitting_can_be_delayed(desk: Desk) -> None:
    desk.call("submit", "demo:app", "--thread", "t", "--input", '{"topic": "x"}', "--delay", "60")
    (lane,) = desk.json(QueueDocument, "queue").lanes
    assert (lane.due, lane.later) == (0, 1)


@pytest.mark.parametrize(
    ("words", "silent", "state"),
    [((), False, "running"), (("--stuck-after", "0"), False, "long"), ((), True, "lost")],
)
def test_threads_of_workers_are_running_long_or_lost(
    desk: Desk, words: tuple[str, ...], silent: bool, state: str
) -> None:
    """A long node has a worker that beats; a lost one has not. Fails if they are mixed up."""
    submitted(desk)
    store = SqliteStore("runs.db", now=lambda: system_time() - silent * 3_600_000_000)
    owner = Owner(host="wall", boot_id="", pid=7, started="")
    (depth,) = SqliteStore("runs.db").depths()
    store.beat(WorkerInfo(id="one", owner=owner, lanes=(depth.lane,), started_at=0))
    store.close()
    store = SqliteStore("runs.db")
    assert len(store.claim("one", [depth.lane], limit=1)) == 1
    store.close()
    (line,) = desk.json(WorkersDocument, "workers", "--threads", *words).threads
    assert (line.thread, line.tenant, line.worker, line.state) == ("demo", "default", "one", state)
    assert line.nodes == ("research",)
    assert state in desk.out("workers", "--threads", *words)
    assert desk.json(WorkersDocument, "workers").threads == ()


def test_a_worker_serves_metrics_if_asked_to(desk: Desk) -> None:
    """Its port is in use here, so it cannot. Fails if the option is ignored."""
    submitted(desk)
    desk.call("worker", "demo:app", "--until-idle", "--metrics", "0", "--stuck-after", "9")
    assert "interrupted" in desk.out("ls")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = desk.call("worker", "demo:app", "--until-idle", "--metrics", port, code=2)
    assert "cannot be served" in done.stderr


def test_several_processes_do_not_work_with_until_idle(desk: Desk) -> None:
    words = ("worker", "demo:app", "--processes", "2", "--until-idle")
    assert "works with neither" in desk.call(*words, code=2).stderr


def limits(desk: Desk, *arguments: str) -> list[tuple[str, str, int | None, int | None, bool]]:
    document = desk.json(QueueDocument, "queue", *arguments)
    return [
        (each.graph, each.tenant, each.concurrency, each.rate, each.paused)
        for each in document.limits
    ]


def test_limits_are_set_changed_and_cleared(desk: Desk) -> None:
    """Fails if a change of one part forgets the others, or the scope is not the one named."""
    submitted(desk)
    assert limits(desk) == []
    assert limits(desk, "limit", "demo", "--concurrency", "3") == [("demo", "", 3, None, False)]
    assert limits(desk, "limit", "demo", "--rate", "5/60") == [("demo", "", 3, 5, False)]
    assert limits(desk, "pause", "demo", "--tenant", "t") == [
        ("demo", "", 3, 5, False),
        ("demo", "t", None, None, True),
    ]
    assert "5 in 60 s" in desk.out("queue")
    assert limits(desk, "resume", "demo", "--tenant", "t") == [("demo", "", 3, 5, False)]
    assert limits(desk, "limit", "demo", "--clear") == []


def test_buckets_are_set_changed_and_removed(desk: Desk) -> None:
    """Fails if a change of one part forgets the others, or the tenant is not the one named."""
    submitted(desk)

    def buckets(arguments: str) -> list[tuple[str, str, int, float, int]]:
        found = desk.json(QueueDocument, "queue", "bucket", *arguments.split()).buckets
        return [(one.name, one.tenant, one.rate, one.period, one.burst) for one in found]

    assert buckets("gpt --rate 200/60") == [("gpt", "", 200, 60.0, 20)]
    assert buckets("gpt --burst 50") == [("gpt", "", 200, 60.0, 50)]
    assert buckets("gpt --rate 100/60") == [("gpt", "", 100, 60.0, 50)]
    both = [("gpt", "", 100, 60.0, 50), ("gpt", "t", 5, 1.0, 1)]
    assert buckets("gpt --tenant t --rate 5/1") == both
    assert "50 of 50" in desk.out("queue")
    assert buckets("gpt --clear") == both[1:]
    for wrong, says in (
        ("bucket gpt", "needs --rate, --burst"),
        ("bucket --rate 5", "needs a name"),
        ("bucket new --burst 5", "it needs --rate"),
        ("bucket gpt --rate 5 --concurrency 1", "takes no --concurrency"),
        ("limit demo --burst 5", "belongs to: milecastle queue bucket"),
    ):
        assert says in desk.call("queue", *wrong.split(), code=2).stderr


def test_a_worker_leaves_what_is_paused(desk: Desk) -> None:
    """Fails if a pause is not heeded, or hides what is due."""
    submitted(desk)
    desk.call("queue", "pause")
    desk.call("worker", "demo:app", "--until-idle", "--poll", "0.05")
    (lane,) = desk.json(QueueDocument, "queue").lanes
    assert (lane.due, lane.running) == (1, 0)
    desk.call("queue", "resume")
    desk.call("worker", "demo:app", "--until-idle", "--poll", "0.05")
    assert "interrupted" in desk.out("ls")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--clear", "belong to: milecastle queue limit"),
        ("--concurrency 3", "belong to: milecastle queue limit"),
        ("pause --rate 1", "queue pause takes no"),
        ("limit demo", "needs --concurrency, --rate or both"),
        ("limit demo --clear --rate 1", "needs --concurrency, --rate or both"),
        ("limit demo --rate many", "takes a number and seconds"),
        ("stop", "stop"),
    ],
)
def test_limits_that_make_no_sense_are_refused(desk: Desk, arguments: str, says: str) -> None:
    """Fails if one of them is accepted, or changes a limit before it is refused."""
    submitted(desk)
    assert says in desk.call("queue", *arguments.split(), code=2).stderr
    assert limits(desk) == []


def test_why_explains_a_thread_and_doctor_the_queue(desk: Desk) -> None:
    """Nothing said that no worker served a graph."""
    submitted(desk)
    said = desk.out("why", "demo")
    assert "thread demo: queued" in said
    assert "no worker serves graph 'Draft'" in said
    found = desk.json(WhyDocument, "why", "demo")
    assert [line.code for line in found.reasons] == ["no-worker"]
    checks = desk.document("doctor").checks
    assert [one.verdict for one in checks if one.name == "queue"] == ["warning"]


def test_submit_and_retry_take_a_config(desk: Desk) -> None:
    """Was broken: the option accepted and not passed on."""
    desk.write(
        "demo.py",
        DEMO.replace("StateGraph(Draft)", "StateGraph(Draft, config=dict)")
        .replace("research(state: Draft)", "research(state, config)")
        .replace("a fact about {state['topic']}", "{config['what']}"),
    )
    given = ("--input", '{"topic": "w"}', "--config")
    desk.call("submit", "demo:app", "--thread", "t", *given, '{"what": "bricks"}')
    desk.call("submit", "demo:app", "--thread", "u", *given, '{"who": "nobody"}')
    desk.call("worker", "demo:app", "--until-idle", "--poll", "0.05")
    assert desk.document("show", "t").state["notes"] == ["bricks"]
    desk.call("retry", "u", "--app", "demo:app", "--config", '{"what": "tiles"}')
    desk.call("worker", "demo:app", "--until-idle", "--poll", "0.05")
    assert desk.document("show", "u").state["notes"] == ["tiles"]
    assert "--config is not JSON" in desk.err("submit", "demo:app", *given, "x", code=2)
