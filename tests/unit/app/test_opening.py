"""Opening stores: by a registered name, or by the entry point of an installed package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from milecastle import InvalidRequest, open_store
from milecastle.stores import opening
from milecastle.stores.memory import MemoryStore
from milecastle.stores.memory import opening as memory
from milecastle.stores.opening import find_store, register_store

Install = Callable[[str, str], None]

MODULE = """
from milecastle.stores.memory import MemoryStore

class Barn(MemoryStore):
    def __init__(self, url):
        super().__init__()
        self.url = url

nothing = None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts packages on the path, each with entry points; what they register is forgotten."""
    monkeypatch.setattr(opening, "_own", {"memory": lambda: memory})
    monkeypatch.setattr(opening, "_factories", {})

    def put(name: str, points: str) -> None:
        folder = tmp_path / name
        known = folder / f"{name}-1.0.dist-info"
        known.mkdir(parents=True)
        (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (known / "entry_points.txt").write_text(f"[milecastle.stores]\n{points}\n")
        (folder / f"{name}.py").write_text(MODULE)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    return put


def test_a_package_brings_its_store(install: Install) -> None:
    install("barn_one", "barn = barn_one:Barn")
    store = find_store("barn://red?door=open")
    assert type(store).__name__ == "Barn"
    assert vars(store)["url"] == "barn://red?door=open"
    assert type(open_store("barn").store) is type(store)


def test_what_is_registered_comes_before_what_is_installed(install: Install) -> None:
    install("barn_two", "barn = barn_two:Barn\nmemory = barn_two:Barn")
    mine = MemoryStore()
    register_store("barn", lambda url: mine)
    assert find_store("barn://") is mine
    assert type(find_store("memory://")) is MemoryStore


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("barn_three", "barn = barn_three:Barn")
    install("barn_four", "barn = barn_four:Barn")
    with pytest.raises(InvalidRequest, match="barn_four:Barn, barn_three:Barn"):
        find_store("barn://")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module_here:Barn", "cannot be loaded"),
        ("barn_five:no_such_name", "cannot be loaded"),
        ("barn_five:nothing", "is not a factory"),
    ],
)
def test_entry_point_that_cannot_be_loaded_is_reported(
    install: Install, value: str, says: str
) -> None:
    install("barn_five", f"barn = {value}")
    with pytest.raises(InvalidRequest, match=says) as caught:
        find_store("barn://")
    assert value in str(caught.value)


def test_unknown_store_is_reported_with_the_known_ones(install: Install) -> None:
    install("barn_six", "barn = barn_six:Barn")
    for url in ("stable://", "stable", "", "milecastle.stores"):
        with pytest.raises(InvalidRequest, match="registered: memory://"):
            find_store(url)


def test_packages_are_looked_at_only_for_an_unknown_name() -> None:
    program = """
import sys
from milecastle import open_store
open_store("memory://").close()
assert "importlib.metadata" not in sys.modules
try:
    open_store("barn://")
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "InvalidRequest\n"
