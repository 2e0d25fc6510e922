"""The cache: what goes in comes out, or is refused; damage is never handed on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import msgspec.structs
import pytest

from milecastle.builds.cache import ContentCache, harvest
from milecastle.builds.paths import Places, hash_bytes, hash_items
from milecastle.builds.records import FORMAT, Artifact, CacheEntry, Item
from milecastle.errors import Corrupted, FileRefused, FormatTooNew

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
    with pytest.raises(FileRefused, match="'f' but did not create it") as caught:
        harvest(places, "f", "n")
    assert (caught.value.file, caught.value.node) == ("f", "n")


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
        with pytest.raises(FileRefused, match="points outside"):
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
    with pytest.raises(FileRefused, match="something else is writing to it"):
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


def test_storing_again_repairs_a_damaged_blob(cache: ContentCache, places: Places) -> None:
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


def test_missing_entry_is_none(cache: ContentCache) -> None:
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
    def refuse(*_: object, **__: object) -> None:
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

    monkeypatch.setattr("milecastle.builds.paths._clone", clone)
    (places.root / "f").write_bytes(b"one")
    keep(cache, places, "f")
    restore(cache, places)
    assert (places.root / "f").read_bytes() == b"one"
    damage(blobs(cache)[0], b"bad")
    with pytest.raises(Corrupted):
        restore(cache, places)


# -- entries that come from elsewhere ------------------------------------------------------------

EVIL = b"written by the cache"
EVIL_HASH = hashlib.sha256(EVIL).hexdigest()


def plant(cache: ContentCache, artifact: Artifact) -> None:
    """Write an entry as an attacker does who may write to the cache: blobs and checksum fit."""
    blob = cache.blob_path(EVIL_HASH)
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(EVIL)
    entry = CacheEntry(
        format=FORMAT, node="n", task_hash=TASK, artifacts=(artifact,), update=b"", created_at=1
    )
    sealed = msgspec.structs.replace(entry, checksum=hash_bytes(msgspec.json.encode(entry)))
    cache.entry_path(TASK).parent.mkdir(parents=True, exist_ok=True)
    cache.entry_path(TASK).write_bytes(msgspec.json.encode(sealed))


FOLDER = Item("", mode=0o755, folder=True)
GOOD = Item("a", hash=EVIL_HASH, size=len(EVIL), mode=0o644)


def evil(path: str, **more: Any) -> Item:
    facts: dict[str, Any] = {"hash": EVIL_HASH, "size": len(EVIL), "mode": 0o644}
    return Item(path, **(facts | more))


@pytest.mark.parametrize(
    "items",
    [
        (FOLDER, evil("../outside")),
        (FOLDER, evil("../../../../../../../../../../tmp/outside")),
        (FOLDER, evil("{outside}")),
        (FOLDER, evil("/outside")),
        (FOLDER, Item("d", mode=0o755, folder=True), evil("d/../../outside")),
        (FOLDER, evil("d/outside")),
        (FOLDER, evil("..")),
        (FOLDER, evil(".")),
        (FOLDER, evil("a//b")),
        (FOLDER, evil("a\0b")),
        (FOLDER, Item("l", link="{parent}"), evil("l/outside")),
        (FOLDER, Item("l", link="{parent}")),
        (FOLDER, Item("l", link="..")),
        (FOLDER, Item("d", mode=0o755, folder=True), Item("d/l", link="../../outside")),
        (
            FOLDER,
            Item("d", mode=0o755, folder=True),
            Item("d/up", link=".."),
            Item("d/l", link="up/../../outside"),
        ),
        (Item("", link="{parent}"),),
        (Item("", link="{parent}"), evil("outside")),
        (evil("outside"),),
        (evil(""), evil("outside")),
        (FOLDER, GOOD, GOOD),
        (FOLDER, FOLDER),
        (FOLDER, evil("a", hash="../../x")),
        (FOLDER, evil("a", link="b")),
        (FOLDER, evil("a", mode=0o4755)),
        (FOLDER, evil("a", mode=-1)),
        (FOLDER, Item("a")),
        (),
    ],
)
def test_entry_that_leaves_its_output_is_never_restored(
    cache: ContentCache, places: Places, items: tuple[Item, ...]
) -> None:
    """Whatever the items claim, nothing is written, neither outside the output nor in it.

    Seen to fail, each for its own cases, without the checks of `_is_inside`, of `leads_out`, of
    the folder that must come before, of repeated names and of `_is_one_thing`.
    """
    parent = str(places.root.parent)
    filled = tuple(
        msgspec.structs.replace(
            item,
            path=item.path.replace("{outside}", f"{parent}/outside"),
            link=item.link.replace("{parent}", parent),
        )
        for item in items
    )
    plant(cache, Artifact("out", hash_items(filled) if filled else "", filled))
    before = sorted(places.root.parent.rglob("*"))
    with pytest.raises(Corrupted, match=r"does not belong|do not make up"):
        restore(cache, places)
    assert sorted(places.root.parent.rglob("*")) == before


def test_items_that_do_not_make_up_the_hash_are_never_restored(
    cache: ContentCache, places: Places
) -> None:
    """A harmless item that was added, changed or left out is found before anything is written.

    Seen to fail without the comparison with the hash of the output. The control is restored.
    """
    honest = (FOLDER, GOOD)
    for items in (
        (*honest, evil("b")),
        (FOLDER,),
        (FOLDER, evil("a", mode=0o755)),
        (FOLDER, evil("a", size=1)),
        (FOLDER, evil("b")),
        (GOOD,),
    ):
        plant(cache, Artifact("out", hash_items(honest), items))
        with pytest.raises(Corrupted, match=r"do not make up|does not belong"):
            restore(cache, places)
        assert list(places.root.iterdir()) == []
    plant(cache, Artifact("out", hash_items(honest), honest))
    restore(cache, places)
    assert (places.root / "out" / "a").read_bytes() == EVIL


# -- modes ---------------------------------------------------------------------------------------


def modes(folder: Path) -> dict[str, int]:
    found = {path for path in folder.rglob("*") if not path.is_symlink()}
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in found}


@pytest.mark.skipif(os.name == "nt", reason="modes")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_of_outputs_are_restored_whatever_the_umask(
    cache: ContentCache, places: Places, mask: int
) -> None:
    """A private file stays private, and a shared one shared.

    Seen to fail when files are restored with the mode that the umask gives.
    """
    (places.root / "d" / "secret").mkdir(parents=True)
    for name, mode in {"d/key": 0o600, "d/run": 0o750, "d/shared": 0o664, "f": 0o640}.items():
        (places.root / name).write_text(name)
        (places.root / name).chmod(mode)
    (places.root / "d").chmod(0o750)
    (places.root / "d" / "secret").chmod(0o700)
    before = modes(places.root)
    keep(cache, places, "d", "f")
    places.clear("d", "n")
    places.clear("f", "n")
    old = os.umask(mask)
    try:
        restore(cache, places)
    finally:
        os.umask(old)
    assert modes(places.root) == before


# -- links put in the way later --------------------------------------------------------------------


def test_path_is_checked_again_at_each_use(cache: ContentCache, places: Places) -> None:
    """A folder that was inside the root and is now a link that leads out is refused.

    Seen to fail when folders that were found inside are remembered.
    """
    (places.root / "out").mkdir()
    (places.root / "out" / "f").write_text("1")
    keep(cache, places, "out/f")
    places.clear("out/f", "n")
    elsewhere = places.root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("precious")
    (places.root / "out").rmdir()
    (places.root / "out").symlink_to(elsewhere)
    for use in (
        lambda: harvest(places, "out/f", "n"),
        lambda: places.clear("out/f", "n"),
        lambda: restore(cache, places),
    ):
        with pytest.raises(FileRefused, match="points outside"):
            use()
    assert (elsewhere / "f").read_text() == "precious"


@pytest.mark.skipif(os.name == "nt", reason="descriptors of folders")
@pytest.mark.parametrize("use", ["clear", "restore"])
def test_link_that_appears_after_the_check_is_not_followed(
    cache: ContentCache, places: Places, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """The folder becomes a link between the check and the use, and nothing behind it is touched.

    Seen to fail when the use goes by the path instead of the folder that is held open.
    """
    (places.root / "out").mkdir()
    (places.root / "out" / "f").write_text("1")
    keep(cache, places, "out/f")
    elsewhere = places.root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("precious")
    honest = Places._folder_of  # pyright: ignore[reportPrivateUsage]

    def check_and_swap(self: Places, path: str, node: str) -> Path:
        found = honest(self, path, node)
        (places.root / "out").rename(places.root / "was")
        (places.root / "out").symlink_to(elsewhere)
        return found

    monkeypatch.setattr(Places, "_folder_of", check_and_swap)
    with pytest.raises(FileRefused, match="must be a folder"):
        places.clear("out/f", "n") if use == "clear" else restore(cache, places)
    assert (elsewhere / "f").read_text() == "precious"
    assert [path.name for path in elsewhere.iterdir()] == ["f"]


@pytest.mark.skipif(os.name == "nt", reason="descriptors of folders")
def test_link_that_appears_while_the_folder_is_held_is_not_followed(places: Places) -> None:
    """Seen to fail when the place of an output is a path and not a name in an open folder."""
    (places.root / "out").mkdir()
    elsewhere = places.root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("precious")
    with places.holding("out/f", "n") as spot:
        (places.root / "out").rename(places.root / "was")
        (places.root / "out").symlink_to(elsewhere)
        spot.remove()
    assert (elsewhere / "f").read_text() == "precious"
