"""A URL that is wrong may hold a password anywhere: no error repeats what was given."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from milecastle.errors import InvalidRequest, MilecastleError, Unavailable
from milecastle.stores.opening import find_store

SERVER = "127.0.0.1:1"
"""Where no server is."""

MALFORMED = [
    "hunter2",
    "bob:hunter2",
    "bob:hunter2@h/db",
    "bob:hunter2@h://db",
    "//bob:hunter2@h/db",
    "mysql://bob:hunter2@h/db",
    "postgresql:/bob:hunter2@h/db",
    "postgresql:bob:hunter2@h/db?next=://",
    "postgresql ://bob:hunter2@h/db",
    "sqlite:/bob:hunter2@h/db",
    "sqlite://bob:hunter2@h/db",
    "sqlite:///x.db?password=hunter2",
    "sqlite:///x.db?hunter2",
    "sqlite:///x.db?synchronous=hunter2",
    "file://bob:hunter2@h/db?x=1",
    "file:///x?hunter2",
]
POSTGRES = [
    "postgresql://bob:hunter2",
    "postgresql://bob:hunter2%zz@h/db",
    "postgresql://bob:%zzhunter2@h/db",
    "postgresql://bob:hunter2%@h/db",
    "postgresql://bob:hunter2%00@h/db",
    "postgresql://bob:hunter2\0@h/db",
    "postgresql://bob:hunter2\udc80@h/db",
    "postgresql://bob:hunter2@[::1/db",
    "postgresql://bob:hunter2@[::1]x/db",
    "postgresql://bob:hunter2@h:port/db",
    f"postgresql://bob:hunter2@{SERVER}0000000/db",
    f"postgresql://bob:x@hunter2@{SERVER}/db",
    f"postgresql://bob@hunter2@{SERVER}/db",
    f"postgresql://bob:1/hunter2@{SERVER}/db",
    f"postgresql://bob:x/hunter2@{SERVER}/db",
    f"postgresql://bob:1?hunter2@{SERVER}/db",
    f"postgresql://bob:hunter2?@{SERVER}/db",
    f"postgresql://{SERVER}/db?hunter2",
    f"postgresql://{SERVER}/db?hunter2=1",
    f"postgresql://{SERVER}/db?pasword=hunter2",
    f"postgresql://{SERVER}/db?port=hunter2",
    f"postgresql://{SERVER}/db?rls=hunter2",
    f"postgresql://{SERVER}/db?max_size=hunter2",
    f"postgresql://{SERVER}/db?timeout=hunter2",
    f"postgresql://{SERVER}/db?schema=pg_hunter2",
]
UNREACHABLE = [
    f"postgresql://bob:hunter2@{SERVER}/db",
    f"postgresql://{SERVER}/db?password=hunter2",
    f"postgresql://{SERVER}/db?sslmode=hunter2",
    f"postgresql://{SERVER}/db?sslmode=x%0Ahunter2",
    f"postgresql://{SERVER}/db?sslmode=hunter2%0Ax",
    f"postgresql://{SERVER}/db?connect_timeout=hunter2",
    f"postgresql://{SERVER}/db?keepalives_idle=hunter2",
    f"postgresql://{SERVER}/db?hostaddr=hunter2",
    f"postgresql://{SERVER}/db?service=hunter2",
]


def check_silence(error: BaseException) -> None:
    """Neither an error nor anything that it brings along says the word."""
    while True:
        assert "hunter2" not in str(error)
        assert "hunter2" not in repr(error)
        below = error.__cause__ or error.__context__
        if below is None:
            return
        error = below


@pytest.mark.parametrize("url", MALFORMED + POSTGRES, ids=ascii)
def test_a_malformed_url_is_refused_and_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest) as caught:
        find_store(url)
    check_silence(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["bob:hunter2", "postgresql:/bob:hunter2@h/db", *POSTGRES], ids=ascii
)
def test_the_store_itself_does_not_repeat_a_url(url: str) -> None:
    postgres = pytest.importorskip("milecastle.stores.postgres")
    for use in (postgres.PostgresStore, postgres.migrate):
        with pytest.raises(InvalidRequest) as caught:
            use(url)
        check_silence(caught.value)


@pytest.mark.parametrize("url", UNREACHABLE, ids=ascii)
def test_failed_connection_does_not_repeat_what_was_given(url: str) -> None:
    pytest.importorskip("milecastle.stores.postgres")
    with pytest.raises(MilecastleError) as caught:
        find_store(url)
    check_silence(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))


def test_a_scheme_that_is_not_known_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"'mysql'; registered: .*postgresql://"):
        find_store("mysql://bob:hunter2@h/db")


def test_failed_connection_names_the_server() -> None:
    pytest.importorskip("milecastle.stores.postgres")
    with pytest.raises(Unavailable, match=r'"127\.0\.0\.1", port 1 failed'):
        find_store(UNREACHABLE[0])


def test_message_says_how_a_url_is_written() -> None:
    pytest.importorskip("milecastle.stores.postgres")
    with pytest.raises(InvalidRequest, match=r"postgresql://user:password@host.*@ as %40"):
        find_store("postgresql://bob:hunter2@home@h/db")


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///%3Amemory%3A?synchronous=full"])
def test_sqlite_in_memory_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="memory://"):
        find_store(url)
    assert list(tmp_path.iterdir()) == []
