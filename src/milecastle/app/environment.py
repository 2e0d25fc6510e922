"""Where a run takes place: library, Python, host, and the git commit when there is one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from milecastle.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["describe_environment"]


@cache
def describe_environment() -> dict[str, str]:
    """The metadata that each run carries. Read once per process."""
    import platform
    from pathlib import Path

    found = {
        "milecastle": __version__,
        "python": platform.python_version(),
        "host": platform.node(),
    }
    commit = find_commit(Path.cwd())
    if commit:
        found["git_commit"] = commit
    return found


def find_commit(start: Path) -> str | None:
    """The commit that is checked out in or above ``start``, read from git's own files."""
    for folder in (start, *start.parents):
        git = folder / ".git"
        try:
            if git.is_file():  # a worktree: the file names the real folder
                git = folder / git.read_text().removeprefix("gitdir:").strip()
            if git.is_dir():
                return _resolve(git)
        except OSError:
            return None
    return None


def _resolve(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head or None
    name = head.removeprefix("ref: ")
    common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
    loose = common / name
    if loose.exists():
        return loose.read_text().strip()
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
