"""Hashes of files and folders, and of what a task depends on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from milecastle.builds import paths as hashing
from milecastle.builds.paths import Links, StatIndex, hash_items, hash_of, look_into, task_hash

TASK: dict[str, Any] = {
    "node": "n",
    "code_version": "c",
    "parameters": "p",
    "input": "i",
    "seen": "s",
    "inputs": {"a": "1"},
    "upstream": {"u": "2"},
    "outputs": ["o"],
}


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    for data in (b"", b"x", os.urandom(3_000_000)):
        (tmp_path / "f").write_bytes(data)
        assert hash_of(str(tmp_path / "f")) == hashlib.sha256(data).hexdigest()


def test_nothing_has_no_hash(tmp_path: Path) -> None:
    assert hash_of(str(tmp_path / "nothing")) is None
    (tmp_path / "f").touch()
    assert hash_of(str(tmp_path / "f" / "below")) is None


@pytest.mark.skipif(os.name == "nt", reason="no executable bit")
def test_a_file_that_can_be_executed_is_another(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("x")
    plain = hash_of(str(path))
    path.chmod(0o755)
    assert hash_of(str(path)) == f"{plain}+x" == hash_items(look_into(str(path)))


def test_the_hash_of_a_folder_covers_names_contents_and_empty_folders(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("1")
    seen = {hash_of(str(folder))}
    (folder / "a").write_text("2")
    seen.add(hash_of(str(folder)))
    (folder / "a").rename(folder / "b")
    seen.add(hash_of(str(folder)))
    (folder / "b").rename(folder / "sub" / "b")
    seen.add(hash_of(str(folder)))
    (folder / "empty").mkdir()
    seen.add(hash_of(str(folder)))
    assert len(seen) == 5


def test_a_link_that_stays_inside_of_its_folder_is_kept_as_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "sub" / "link").symlink_to("../a")
    assert [item.link for item in look_into(str(folder))] == ["", "", "", "../a"]


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "sub/../../outside", "up/../x"])
def test_a_link_that_leads_out_of_its_folder_is_refused(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "link").symlink_to(target)
    with pytest.raises(Links, match="points outside its folder"):
        look_into(str(folder))


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(Links, match="a symbolic link"):
        look_into(str(tmp_path / "link"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    with pytest.raises(Links, match="not an ordinary file"):
        look_into(str(folder))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("node", "m"),
        ("code_version", "d"),
        ("parameters", "q"),
        ("input", "j"),
        ("seen", "t"),
        ("inputs", {"a": "9"}),
        ("inputs", {"b": "1"}),
        ("upstream", {"u": "9"}),
        ("upstream", {}),
        ("outputs", ["x"]),
    ],
)
def test_everything_that_a_task_depends_on_is_in_its_hash(name: str, other: Any) -> None:
    assert task_hash(**TASK) != task_hash(**(TASK | {name: other}))


def test_the_order_of_files_does_not_matter() -> None:
    forth: dict[str, Any] = {"inputs": {"a": "1", "b": "2"}, "outputs": ["x", "y"]}
    back: dict[str, Any] = {"inputs": {"b": "2", "a": "1"}, "outputs": ["y", "x"]}
    assert task_hash(**{**TASK, **forth}) == task_hash(**{**TASK, **back})


# -- files that were not touched ---------------------------------------------------------------


def aged(path: Path, seconds: float = 100) -> None:
    """Let a file look as if it had been written some time ago; its ctime cannot be set."""
    when = path.stat().st_mtime - seconds
    os.utime(path, (when, when))


@pytest.fixture
def no_grain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_GRAIN", -1)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []

    def hash_and_note(path: str) -> str | None:
        read.append(path)
        return hash_of(path)

    monkeypatch.setattr(hashing, "hash_of", hash_and_note)
    return read


@pytest.mark.usefixtures("no_grain")
def test_an_untouched_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("1")
    read = count_reads(monkeypatch)
    first = StatIndex(tmp_path / "index")
    expected = first.hash_of(str(path))
    first.save()
    second = StatIndex(tmp_path / "index")
    assert second.hash_of(str(path)) == second.hash_of(str(path)) == expected == hash_of(str(path))
    assert read == [str(path)]


@pytest.mark.usefixtures("no_grain")
def test_a_touched_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("1")
    index = StatIndex(tmp_path / "index")
    before = index.hash_of(str(path))
    times = path.stat()
    path.write_text("2")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same mtime
    assert index.hash_of(str(path)) == hash_of(str(path)) != before


def test_a_file_that_was_just_written_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("1")
    aged(path)  # its ctime is still now
    read = count_reads(monkeypatch)
    index = StatIndex(tmp_path / "index")
    index.hash_of(str(path))
    index.hash_of(str(path))
    assert read == [str(path)] * 2


@pytest.mark.parametrize("damage", [b"", b"\xff\xff", b"\x81\xa1x\x01"])
def test_an_index_that_is_damaged_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "index").write_bytes(damage)
    (tmp_path / "f").write_text("1")
    index = StatIndex(tmp_path / "index")
    assert index.hash_of(str(tmp_path / "f")) == hash_of(str(tmp_path / "f"))


def test_index_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    index = StatIndex(tmp_path / "no" / "such" / "index")
    (tmp_path / "f").write_text("1")
    index._fresh["x"] = hashing._Known((1, 2, 3, 4, 5), "h")  # pyright: ignore[reportPrivateUsage]
    index.save()
    assert not (tmp_path / "no").exists()


def test_an_input_may_be_a_link_and_an_output_may_not(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    (tmp_path / "link").symlink_to("f")
    index = StatIndex(None)
    assert index.hash_of(str(tmp_path / "link"), follow=True) == hash_of(str(tmp_path / "f"))
    with pytest.raises(Links):
        index.hash_of(str(tmp_path / "link"))


def test_an_input_behind_a_link_is_known_by_the_index(tmp_path: Path) -> None:
    """Fails if the link is not followed, or the hash is that of the link."""
    (tmp_path / "f").write_text("1")
    (tmp_path / "link").symlink_to("f")
    index = StatIndex(tmp_path / "index")
    assert index.hash_of(str(tmp_path / "link"), follow=True) == hash_of(str(tmp_path / "f"))
    (tmp_path / "f").write_text("2, and longer")
    assert index.hash_of(str(tmp_path / "link"), follow=True) == hash_of(str(tmp_path / "f"))
