"""One place is called when a process forks; whatever a fork concerns registers there."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from milecastle.model.ids import IdMaker
from milecastle.support import forking
from milecastle.support.forking import watch_forks

SOURCE = Path(__file__).parents[2] / "src" / "milecastle"


def test_one_module_asks_the_system_about_forks() -> None:
    """Seen to fail with the six modules that each had their own hooks."""
    found = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "os.register_at_fork(" in path.read_text("utf-8")
    ]
    assert found == ["support/forking.py"]


def test_what_is_watched_is_not_kept_alive() -> None:
    """Seen to fail with a maker of ids that registered its method with the system."""
    maker = IdMaker()
    seen = weakref.ref(maker)
    del maker
    gc.collect()
    assert seen() is None


def test_calls_resume_after_a_fork_in_parent_and_child() -> None:
    class Watched:
        def __init__(self) -> None:
            self.said: list[str] = []

        def before_fork(self) -> None:
            self.said.append("before")

        def after_fork(self, *, in_child: bool) -> None:
            self.said.append("child" if in_child else "parent")

    watched = Watched()
    watch_forks(watched)
    forks = vars(forking)["_forks"]
    forks.before()
    forks.after_in_parent()
    forks.before()
    vars(forking)["_forks"]._resume(in_child=True)
    forks.after_in_parent()
    assert watched.said == ["before", "parent", "before", "child"]
