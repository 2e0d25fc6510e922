"""Deadlines that workers keep, and answers that meet them: one of both is committed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milecastle import App, Store, interrupt
from milecastle.errors import AlreadyAnswered, Conflict, InvalidRequest, RecoveryError
from milecastle.testing import ManualClock, with_store
from tests.acceptance.fleet.working import Trip, line, serving, start, until, work
from tests.acceptance.overtaking import Overtaken

LATE = (InvalidRequest, RecoveryError, Conflict)
"""What a caller gets whose answer came too late: none of them is a success."""


def asking(store: Store, within: float) -> App[Trip]:
    def ask(state: Trip) -> dict[str, Any]:
        return {"log": [interrupt("ok?", answer=str, within=within, otherwise="nobody")]}

    return line(store, ("ask", ask))


def test_worker_wakes_a_thread_at_its_deadline(store: Store) -> None:
    """Tried: an index row without a time while the thread asks; it waits forever."""

    async def main() -> None:
        app = asking(store, 0.2)
        app.submit(start(), "t")
        async with serving(app):

            async def has_ended() -> bool:
                return app.state("t").status == "completed"

            await until(has_ended)
        assert app.state("t").state["log"] == ["nobody"]

    asyncio.run(main())


def test_index_has_the_deadline_and_no_worker_comes_before(store: Store) -> None:
    """Tried: an index row that is due at once, and not at its deadline."""
    app = asking(store, 3600)
    app.submit(start(), "t")
    work(app)
    info = store.thread(app.state("t").key)
    assert info is not None
    assert (info.status, info.questions) == ("interrupted", 1)
    assert info.due_at == info.wake_at
    assert info.wake_at is not None
    app.answer("t", "yes")
    work(app)
    assert app.state("t").state["log"] == ["yes"]


def test_answer_that_is_overtaken_by_the_timeout_is_refused() -> None:
    """Tried: a store that commits answers at whichever head it finds; this one is accepted."""
    clock = ManualClock()
    store = Overtaken(now=clock.now)
    app = with_store(asking(store, 60), store, clock=clock)
    app.submit(start(), "t")
    work(app)

    def time_out() -> None:
        clock.advance(61)
        work(app)

    store.other = time_out
    with pytest.raises(AlreadyAnswered, match="timed out at"):
        app.answer("t", "yes")
    assert app.state("t").state["log"] == ["nobody"]


def test_answer_and_timeout_are_never_both_taken(store: Store) -> None:
    """Answers around their deadlines: each accepted one is the result, each refused one is not.

    Tried: deadlines that end waits by the clock, before the answer is looked at; accepted
    answers are lost.
    """

    async def main() -> None:
        app, count, within = asking(store, 0.4), 16, 0.4
        names = [f"t{number}" for number in range(count)]
        app.submit_many({name: start() for name in names})
        accepted: dict[str, bool] = {}

        async def answers(name: str, late: float) -> None:
            async def asks() -> bool:
                return bool(app.state(name).interrupts)

            await until(asks)
            (found,) = app.state(name).interrupts or (None,)
            if found is not None:
                await asyncio.sleep(max(0.0, within + late))
            try:
                await app.aanswer(name, "yes")
            except LATE:
                accepted[name] = False
            else:
                accepted[name] = True

        async with serving(app):
            late = [(number - count / 2) * 0.02 - 0.05 for number in range(count)]
            await asyncio.gather(*map(answers, names, late))

            async def all_ended() -> bool:
                return all(app.state(name).status == "completed" for name in names)

            await until(all_ended)
        for name in names:
            expected = "yes" if accepted[name] else "nobody"
            assert app.state(name).state["log"] == [expected], (name, accepted)

    asyncio.run(main())
