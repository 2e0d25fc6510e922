"""The environment: the git commit is read from git's own files."""

from __future__ import annotations

import os
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


SECRET = "BEGIN PRIVATE KEY"


def outside(folder: Path) -> Path:
    """A file that git's files may name, and that holds no id."""
    path = folder / "secret"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.mark.parametrize(
    "head",
    [
        SECRET.encode(),
        f"ref: ../../../..{'/..' * 20}/etc/passwd".encode(),
        b"ref: refs/../../secret",
        b"ref: refs/heads/secret",
        b"ref: /etc/passwd",
        b"ref: refs/heads/\0nul",
        b"ref: refs/heads/" + b"x" * 5000,
        b"\xff\xfe\x80",
        b"ref: refs/heads/\xff",
        b"ab" * 19,
        b"AB" * 20,
        b"ab" * 20 + b"\nmore",
    ],
)
def test_odd_heads_have_no_commit_and_leak_nothing(tmp_path: Path, head: bytes) -> None:
    """Seen to fail: UnicodeDecodeError, ValueError, OSError, and the text of the file named."""
    git = repository(tmp_path)
    (git / "HEAD").write_bytes(head)
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "secret").symlink_to(outside(tmp_path))
    assert find_commit(tmp_path) is None


@pytest.mark.parametrize("text", [b"gitdir: \0", b"gitdir: \xff", b"gitdir:" + b"x" * 5000, b""])
def test_odd_worktree_files_have_no_commit(tmp_path: Path, text: bytes) -> None:
    (tmp_path / ".git").write_bytes(text)
    assert find_commit(tmp_path) is None


@pytest.mark.parametrize("name", ["HEAD", "commondir", "packed-refs", "refs/heads/main"])
def test_files_of_git_that_are_not_files_have_no_commit(tmp_path: Path, name: str) -> None:
    """A pipe would block the process that opens it; seen to fail with a folder."""
    git = repository(tmp_path)
    path = git / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path) if hasattr(os, "mkfifo") else path.mkdir()
    assert find_commit(tmp_path) is None


def test_packed_refs_are_ids_or_nothing(tmp_path: Path) -> None:
    git = repository(tmp_path)
    (git / "packed-refs").write_bytes(b"not-an-id refs/heads/main\n\xff refs/heads/main\n")
    assert find_commit(tmp_path) is None


def test_a_folder_that_is_gone_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    describe_environment.cache_clear()
    try:
        assert "git_commit" not in describe_environment()
    finally:
        describe_environment.cache_clear()
        monkeypatch.undo()


def test_no_repository_has_none() -> None:
    assert find_commit(Path(Path(__file__).anchor)) is None


@pytest.mark.parametrize("commit", [COMMIT, None])
def test_environment_contains_the_commit_when_there_is_one(
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
