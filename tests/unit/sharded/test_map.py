"""The file of a map: every shard once, and every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle import InvalidRequest
from milecastle.stores.sharded import read_map

A = "postgresql://a@host/db"
GOOD = f"""version = 3
[databases]
a = "{A}"
b = "$MC_TEST_URL"
empty = "postgres://host/empty"
[shards]
"0-511" = "a"
512 = "a"
"513-1023" = "b"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "shards.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_map_gives_each_shard_to_one_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a range leaves out its last shard, or a variable is not looked up."""
    monkeypatch.setenv("MC_TEST_URL", "postgresql://b:secret@host/db")
    found = read_map(written(tmp_path, GOOD))
    assert found.version == 3
    assert found.urls["b"] == "postgresql://b:secret@host/db"
    assert found.shards_of("a") == frozenset(range(513))
    assert found.shards_of("b") == frozenset(range(513, 1024))
    assert found.shards_of("empty") == frozenset()
    assert len(found.owners) == 1024


MISTAKES = {
    "it is not TOML": "version = ",
    "it has 'more'": GOOD + "[more]\n",
    "version must be": GOOD.replace("version = 3", "version = 0"),
    "add 'version = 1'": GOOD.replace("version = 3", "version = true"),
    "no table [databases]": "version = 1\n[shards]\n0 = 'a'\n",
    "no table [shards]": f"version = 1\nshards = 7\n[databases]\na = '{A}'\n",
    "'A b': a name has": GOOD.replace('b = "$MC', '"A b" = "$MC'),
    "'a': a URL must be a text": GOOD.replace(f'"{A}"', "7"),
    "MC_TEST_OTHER is not set": GOOD.replace("MC_TEST_URL", "MC_TEST_OTHER"),
    "'a': write a postgresql:// URL": GOOD.replace(f'"{A}"', '"sqlite:///x"'),
    "'empty': it has the same URL as 'a'": GOOD.replace("postgres://host/empty", A),
    "'512': it must name one of [databases]": GOOD.replace('512 = "a"', '512 = "x"'),
    "'512': it must name": GOOD.replace('512 = "a"', "512 = 7"),
    "'5-4': write a shard": GOOD.replace('512 = "a"', '"5-4" = "a"'),
    "'1024': write a shard": GOOD.replace('512 = "a"', '1024 = "a"'),
    "'all': write a shard": GOOD.replace('512 = "a"', 'all = "a"'),
    "shard 511 is given to two": GOOD.replace('512 = "a"', '"511-512" = "a"'),
    "leaves out 1 of 1024 shards, the first is 512": GOOD.replace('512 = "a"\n', ""),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """Fails if it is accepted, or reported as another; and if the message has a URL."""
    monkeypatch.setenv("MC_TEST_URL", "postgresql://b:secret@host/db")
    with pytest.raises(InvalidRequest) as caught:
        read_map(written(tmp_path, MISTAKES[message]))
    assert message in str(caught.value)
    assert "shards.toml is not a map of databases" in str(caught.value)
    assert "@host" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Fails if an error of the system gets through."""
    with pytest.raises(InvalidRequest, match="it cannot be read"):
        read_map(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(InvalidRequest, match="it is not UTF-8"):
        read_map(tmp_path / "latin.toml")
