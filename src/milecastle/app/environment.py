"""A run's environment: library, Python, host, and the git commit if there is one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from milecastle.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

_HEXADECIMAL = frozenset("0123456789abcdef")
_LENGTHS = (40, 64)
_LARGEST = 32 << 20


@cache
def describe_environment() -> dict[str, str]:
    import platform
    from pathlib import Path

    found = {
        "milecastle": __version__,
        "python": platform.python_version(),
        "host": platform.node(),
    }
    try:
        commit = find_commit(Path.cwd())
    except OSError:  # the folder is gone
        commit = None
    if commit:
        found["git_commit"] = commit
    return found


def find_commit(start: Path) -> str | None:
    """The commit checked out in or above ``start``, read from git's own files.

    Those files may belong to anybody and contain anything: whatever is not a commit id is ignored,
    and nothing in them is an error.
    """
    try:
        for folder in (start, *start.parents):
            git = folder / ".git"
            if git.is_file():  # a worktree: the file names the real folder
                git = folder / _text(git).removeprefix("gitdir:").strip()
            if git.is_dir():
                found = _resolve(git)
                return found if len(found) in _LENGTHS and set(found) <= _HEXADECIMAL else None
    except (OSError, ValueError):
        return None
    return None


def _resolve(git: Path) -> str:
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    if not name.startswith("refs/") or ".." in name:
        return ""
    common = git / _text(git / "commondir")
    loose = _text(common / name)
    packed = () if loose else _text(common / "packed-refs").splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), loose)


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_LARGEST).decode(errors="replace").strip()
