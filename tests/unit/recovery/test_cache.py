"""The cache: what goes in comes out, or is refused; damage is never handed on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milecastle.errors import Corrupted, FileRefused, FormatTooNew
from milecastle.recovery import copying
from milecastle.recovery.cache import ContentCache, harvest
from milecastle.recovery.places import Places
from milecastle.recovery.records import FORMAT, CacheEntry

TASK = "ab" + "0" * 62


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "root").mkdir()
    return Places(tmp_path / "root")


@pytest.fixture
def cache(tmp_path: Path) -> ContentCache:
    return ContentCache(tmp_path / "cache")


def keep(cache: ContentCache, places: Places, *paths: str, update: bytes = b"u") -> CacheEntry:
    entry = CacheEntry(
        format=FORMAT,
        node="n",
        task_hash=TASK,
        artifacts=tuple(harvest(places, path, "n") for path in paths),
        update=update,
        created_at=1,
    )
    with cache.sharing():
        cache.store(places, entry)
    return entry


def restore(cache: ContentCache, places: Places) -> None:
    entry = cache.load(TASK)
    assert entry is not None
    for artifact in entry.artifacts:
        cache.restore(places, artifact, "n")


def blobs(cache: ContentCache) -> list[Path]:
    return [cache.blob_path(name) for name in cache.sizes()]


def test_a_file_is_put_back_as_it_was(cache: ContentCache, places: Places) -> None:
    path = places.root / "deep" / "er" / "f"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one")
    keep(cache, places, "deep/er/f")
    path.write_bytes(b"other")
    restore(cache, places)
    assert path.read_bytes() == b"one"
    path.unlink()
    path.parent.rmdir()
    restore(cache, places)
    assert path.read_bytes() == b"one"


def test_a_folder_is_put_back_as_it_was(cache: ContentCache, places: Places) -> None:
    folder = places.root / "d"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "sub" / "run").write_text("#!")
    (folder / "sub" / "run").chmod(0o755)
    (folder / "link").symlink_to("sub/run")
    before = harvest(places, "d", "n")
    keep(cache, places, "d")
    (folder / "a").unlink()
    (folder / "more").write_text("left over")
    restore(cache, places)
    assert harvest(places, "d", "n") == before
    assert not (folder / "more").exists()
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "nothing"])
@pytest.mark.parametrize("output", ["f", "d"])
def test_whatever_is_in_the_way_is_replaced(
    cache: ContentCache, places: Places, output: str, kind: str
) -> None:
    (places.root / "f").write_text("1")
    (places.root / "d").mkdir()
    (places.root / "d" / "x").write_text("2")
    outside = places.root.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine")
    entry = keep(cache, places, output)
    path = places.root / output
    places.clear(output, "n")
    if kind == "file":
        path.write_text("in the way")
    elif kind == "folder":
        path.mkdir()
        (path / "y").write_text("in the way")
    elif kind == "link":
        path.symlink_to(outside)
    restore(cache, places)
    assert harvest(places, output, "n") == entry.artifacts[0]
    assert (outside / "kept").read_text() == "mine"


def test_equal_files_are_kept_once(cache: ContentCache, places: Places) -> None:
    for name in "abc":
        (places.root / name).write_text("same")
    keep(cache, places, "a", "b", "c")
    assert len(blobs(cache)) == 1


def test_a_blob_is_named_after_its_bytes_and_not_writable(
    cache: ContentCache, places: Places
) -> None:
    (places.root / "f").write_text("1")
    entry = keep(cache, places, "f")
    [blob] = blobs(cache)
    assert blob.parent.name + blob.name == entry.artifacts[0].hash
    assert blob.stat().st_mode & 0o222 == 0
    restore(cache, places)
    assert (places.root / "f").stat().st_mode & 0o200


def test_an_output_that_was_not_made_is_refused(places: Places) -> None:
    with pytest.raises(FileRefused, match="'f' and did not make it") as caught:
        harvest(places, "f", "n")
    assert (caught.value.path, caught.value.node) == ("f", "n")


def test_an_output_that_is_a_link_is_refused(places: Places, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1")
    (places.root / "f").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileRefused, match="is a symbolic link"):
        harvest(places, "f", "n")


def test_an_output_behind_a_link_that_leads_out_is_refused(places: Places, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("mine")
    (places.root / "out").symlink_to(tmp_path / "elsewhere")
    for attempt in (harvest, Places.clear):
        with pytest.raises(FileRefused, match="leads out of"):
            attempt(places, "out/f", "n")
    assert (tmp_path / "elsewhere" / "f").read_text() == "mine"


def test_an_output_behind_a_link_that_stays_inside_is_fine(places: Places) -> None:
    (places.root / "real").mkdir()
    (places.root / "out").symlink_to("real")
    (places.root / "out" / "f").write_text("1")
    assert harvest(places, "out/f", "n").items[0].size == 1


def test_a_file_that_changes_while_it_is_kept_is_refused(
    cache: ContentCache, places: Places
) -> None:
    (places.root / "f").write_text("1")
    artifact = harvest(places, "f", "n")
    (places.root / "f").write_text("2")
    entry = CacheEntry(
        format=FORMAT, node="n", task_hash=TASK, artifacts=(artifact,), update=b"", created_at=1
    )
    with pytest.raises(FileRefused, match="something else writes to it"):
        cache.store(places, entry)
    assert (blobs(cache), cache.names()) == ([], set())


# -- damage ------------------------------------------------------------------------------------


def damage(path: Path, data: bytes | None) -> None:
    path.chmod(0o644)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("data", [None, b"", b"x", b"two"])
@pytest.mark.parametrize("output", ["f", "d"])
def test_a_damaged_blob_is_never_put_back(
    cache: ContentCache, places: Places, output: str, data: bytes | None
) -> None:
    (places.root / "f").write_bytes(b"one")
    (places.root / "d").mkdir()
    (places.root / "d" / "x").write_bytes(b"one")
    entry = keep(cache, places, output)
    [blob] = blobs(cache)
    damage(blob, data)
    assert len(cache.damage_of(entry.artifacts)) == 1
    (places.root / "f").write_bytes(b"still here")
    with pytest.raises(Corrupted) as caught:
        restore(cache, places)
    assert caught.value.place == str(blob)
    assert (places.root / "f").read_bytes() == b"still here"
    assert sorted(path.name for path in places.root.iterdir()) == ["d", "f"]


def test_keeping_again_mends_a_damaged_blob(cache: ContentCache, places: Places) -> None:
    (places.root / "f").write_bytes(b"one")
    entry = keep(cache, places, "f")
    damage(blobs(cache)[0], b"bad")
    keep(cache, places, "f")
    assert cache.damage_of(entry.artifacts) == []


def test_any_flipped_byte_of_an_entry_is_found(cache: ContentCache, places: Places) -> None:
    (places.root / "f").write_bytes(b"one")
    keep(cache, places, "f")
    path = cache.entry_path(TASK)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises((Corrupted, FormatTooNew)):
            cache.load(TASK)
    path.write_bytes(whole)
    assert cache.load(TASK) is not None


def test_an_entry_in_the_place_of_another_is_found(cache: ContentCache, places: Places) -> None:
    keep(cache, places)
    other = TASK[:-1] + "1"
    cache.entry_path(other).write_bytes(cache.entry_path(TASK).read_bytes())
    with pytest.raises(Corrupted):
        cache.load(other)


def test_an_entry_that_is_not_there_is_none(cache: ContentCache) -> None:
    assert cache.load(TASK) is None
    assert cache.names() == set()


# -- clones, links, copies ---------------------------------------------------------------------


def test_a_restored_file_can_be_edited_without_harm_to_the_cache(
    cache: ContentCache, places: Places
) -> None:
    (places.root / "f").write_bytes(b"one")
    entry = keep(cache, places, "f")
    restore(cache, places)
    with (places.root / "f").open("ab") as file:
        file.write(b" more")
    assert cache.damage_of(entry.artifacts) == []


def test_hard_links_are_made_only_if_asked_for(tmp_path: Path, places: Places) -> None:
    cache = ContentCache(tmp_path / "cache", hard_links=True)
    (places.root / "f").write_bytes(b"one")
    keep(cache, places, "f")
    restore(cache, places)
    [blob] = blobs(cache)
    assert (places.root / "f").stat().st_ino == blob.stat().st_ino
    places.clear("f", "n")  # as before a node runs: the link goes, the blob stays
    (places.root / "f").write_bytes(b"two")
    assert blob.read_bytes() == b"one"
    plain = ContentCache(tmp_path / "cache")
    restore(plain, places)
    assert (places.root / "f").stat().st_nlink == 1


def test_without_links_a_copy_is_made(
    tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    cache = ContentCache(tmp_path / "cache", hard_links=True)
    (places.root / "f").write_bytes(b"one")
    keep(cache, places, "f")
    restore(cache, places)
    assert (places.root / "f").read_bytes() == b"one"
    assert (places.root / "f").stat().st_nlink == 1


def test_a_clone_is_verified_like_a_copy(
    cache: ContentCache, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(given: int, made: int) -> bool:
        os.write(made, os.read(given, 100))
        return True

    monkeypatch.setattr(copying, "_clone", clone)
    (places.root / "f").write_bytes(b"one")
    keep(cache, places, "f")
    restore(cache, places)
    assert (places.root / "f").read_bytes() == b"one"
    damage(blobs(cache)[0], b"bad")
    with pytest.raises(Corrupted):
        restore(cache, places)
