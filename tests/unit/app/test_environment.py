"""The environment: the git commit is read from git's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle.app.environment import describe_environment, find_commit

COMMIT = "ab" * 20


def repository(folder: Path, head: str = "ref: refs/heads/main\n") -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    return git


def test_a_branch_is_followed_to_its_commit(tmp_path: Path) -> None:
    git = repository(tmp_path)
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    assert find_commit(inner) == COMMIT


def test_a_packed_branch_is_found(tmp_path: Path) -> None:
    git = repository(tmp_path)
    (git / "packed-refs").write_text(
        f"# pack-refs\n{'cd' * 20} refs/heads/other\n{COMMIT} refs/heads/main\n"
    )
    assert find_commit(tmp_path) == COMMIT


def test_a_detached_head_is_the_commit(tmp_path: Path) -> None:
    repository(tmp_path, f"{COMMIT}\n")
    assert find_commit(tmp_path) == COMMIT


def test_a_worktree_is_followed_to_the_real_folder(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / "refs" / "heads").mkdir(parents=True)
    (main / "refs" / "heads" / "side").write_text(COMMIT)
    worktree = main / "worktrees" / "side"
    worktree.mkdir(parents=True)
    (worktree / "HEAD").write_text("ref: refs/heads/side")
    (worktree / "commondir").write_text("../..\n")
    side = tmp_path / "side"
    side.mkdir()
    (side / ".git").write_text(f"gitdir: {worktree}\n")
    assert find_commit(side) == COMMIT


@pytest.mark.parametrize("head", ["ref: refs/heads/unborn", ""])
def test_a_repository_without_a_commit_has_none(tmp_path: Path, head: str) -> None:
    repository(tmp_path, head)
    assert find_commit(tmp_path) is None


def test_a_broken_repository_has_none(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert find_commit(tmp_path) is None


def test_no_repository_has_none() -> None:
    assert find_commit(Path(Path(__file__).anchor)) is None


@pytest.mark.parametrize("commit", [COMMIT, None])
def test_the_environment_tells_the_commit_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    repository(tmp_path, commit or "ref: refs/heads/unborn")
    describe_environment.cache_clear()
    try:
        found = describe_environment()
    finally:
        describe_environment.cache_clear()
    assert found.get("git_commit") == commit
    assert {"milecastle", "python", "host"} <= found.keys()
