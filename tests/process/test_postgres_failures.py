"""A failure is in the row of its run, in PostgreSQL: whichever of the two comes first."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace
from psycopg import sql

from milecastle.errors import Corrupted, StoreError
from milecastle.stores.postgres import PostgresStore
from milecastle.testing.entries import Writer, a_failure, a_run, make_id
from tests.postgres_cluster import fresh_store, needs_postgres, schema_of, the_cluster

pytestmark = needs_postgres


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    yield from fresh_store()


def test_a_failure_changes_nothing_of_a_record_that_was_there(store: PostgresStore) -> None:
    writer = Writer()
    run = a_run(
        writer.key,
        status="sleeping",
        previous_run_id=make_id(9),
        ended_at=8,
        wake_at=7,
        metadata={"host": "a"},
    )
    writer.append(store, runs=(run,))
    store.commit(writer.batch(failure=a_failure(run.run_id)))
    assert store.run(writer.key, run.run_id) == run
    assert list(store.runs(writer.key)) == [run]
    assert store.failure(writer.key, run.run_id) == a_failure(run.run_id)


def test_a_later_record_keeps_the_failure_and_forgets_what_it_does_not_have(
    store: PostgresStore,
) -> None:
    writer = Writer()
    run = a_run(writer.key, status="sleeping", previous_run_id=make_id(9), ended_at=8, wake_at=7)
    store.commit(writer.batch(runs=(run,), failure=a_failure(run.run_id)))
    later = replace(run, previous_run_id=None, ended_at=None, wake_at=None)
    store.commit(writer.batch(runs=(later,)))
    assert store.run(writer.key, run.run_id) == later
    assert store.failure(writer.key, run.run_id) == a_failure(run.run_id)


def test_a_failure_may_come_before_its_record(store: PostgresStore) -> None:
    """Until then there is no such run, and no thread to list."""
    writer = Writer()
    run, failure = writer.run, a_failure(writer.run.run_id)
    store.commit(writer.batch(failure=failure))
    assert store.failure(writer.key, run.run_id) == failure
    assert store.run(writer.key, run.run_id) is None
    assert list(store.runs(writer.key)) == []
    assert list(store.threads(writer.key.tenant)) == []
    store.commit(writer.batch(runs=(run,)))
    assert store.run(writer.key, run.run_id) == run
    assert store.failure(writer.key, run.run_id) == failure
    assert [info.run_id for info in store.threads(writer.key.tenant)] == [run.run_id]


def test_a_failure_without_a_record_goes_with_the_thread(store: PostgresStore) -> None:
    writer = Writer()
    store.commit(writer.batch(failure=a_failure(make_id(5))))
    assert store.delete(writer.key) is True
    assert store.failure(writer.key, make_id(5)) is None
    assert store.delete(writer.key) is False


def test_the_last_failure_of_a_run_counts(store: PostgresStore) -> None:
    writer = Writer().begin(store)
    for message in ("first", "second"):
        failure = a_failure(writer.run.run_id, message=message)
        store.commit(writer.batch(failure=failure))
        assert store.failure(writer.key, writer.run.run_id) == failure


def _without(stored: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in stored.items() if key != name}


STORED: dict[str, object] = {
    "failure_class": "execution",
    "resumable": True,
    "error_type": "",
    "message": "",
    "traceback": [],
    "causes": [],
    "attempt": 1,
    "time": 1,
    "node": None,
}


@pytest.mark.parametrize(
    "stored",
    [
        *(_without(STORED, name) for name in STORED),
        *({**STORED, name: {"secret": 1}} for name in STORED),
        {**STORED, "secret": 1},
        {**STORED, "failure_class": "secret"},
        {**STORED, "traceback": [1]},
        {**STORED, "resumable": 1},
        {**STORED, "attempt": 2**63},
        {**STORED, "time": -(2**63) - 1},
        [STORED],
        None,
    ],
)
def test_a_failure_that_was_never_written_is_not_read(store: PostgresStore, stored: object) -> None:
    writer = Writer().begin(store)
    _overwrite(store, msgspec.json.encode(stored).decode())
    with pytest.raises(Corrupted) as caught:
        store.failure(writer.key, writer.run.run_id)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "secret", '{"secret', "{}"])
def test_text_that_is_not_a_failure_is_not_read(store: PostgresStore, text: str) -> None:
    writer = Writer().begin(store)
    _overwrite(store, text)
    with pytest.raises(Corrupted) as caught:
        store.failure(writer.key, writer.run.run_id)
    assert "secret" not in str(caught.value)


def test_what_the_tests_of_damage_start_from_is_sound(store: PostgresStore) -> None:
    writer = Writer().begin(store)
    _overwrite(store, msgspec.json.encode(STORED).decode())
    assert store.failure(writer.key, writer.run.run_id) == a_failure(
        writer.run.run_id, error_type="", message="", traceback=(), time=1
    )


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
@pytest.mark.parametrize("field", ["attempt", "time"])
def test_a_number_that_no_column_could_hold_is_refused(
    store: PostgresStore, field: str, number: int
) -> None:
    writer = Writer().begin(store)
    with pytest.raises(StoreError):
        store.commit(writer.batch(failure=a_failure(writer.run.run_id, **{field: number})))
    assert store.failure(writer.key, writer.run.run_id) is None


def _overwrite(store: PostgresStore, text: str) -> None:
    table = sql.Identifier(schema_of(store), "runs")
    the_cluster().execute(sql.SQL("UPDATE {} SET failure = {}").format(table, sql.Literal(text)))
