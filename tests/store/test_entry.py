"""What the folder of an entry may hold, and what becomes of it otherwise."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from filelock import FileLock

from optkit.facts.errors import IntegrityError, StorageError
from optkit.ground.store import Meta, Store, durably, folder
from optkit.ground.store.entry import check_files

SHA256 = "0" * 64


def produce(place: Path) -> Meta:
    (place / "deep").mkdir()
    (place / "deep/a").write_bytes(b"a")
    return {"said": 1}


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("../a", SHA256), ("a/../../b", SHA256), ("/a", SHA256), ("a//b", SHA256), (".", SHA256),
        ("", SHA256), ("a\n", SHA256), ("a" * 256, SHA256), ("a/" * 512 + "a", SHA256),
        ("a", f"{SHA256}/../../out"), ("a", SHA256[1:]), ("a", SHA256[:-1] + "F"), ("a", None),
    ],
)  # fmt: skip
def test_names_and_digests_that_no_entry_has(name: str, sha256: object) -> None:
    check_files({"a": SHA256, "deep/b": SHA256, "c" * 255: SHA256})
    with pytest.raises(IntegrityError):
        check_files({name: sha256})


def test_a_fact_that_has_changed_makes_an_entry_corrupt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = store.make("aa", "say", produce)[0].path / "entry.json"
    record.write_text(record.read_text().replace('"said": 1', '"said": 2'))
    assert store.get("aa") is None and "entry.json is damaged" in store.warnings[0]


def test_a_link_to_a_folder_makes_an_entry_corrupt(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    entry, _ = store.make("aa", "say", produce)
    (entry.path / "more").symlink_to(tmp_path)
    assert store.get("aa") is None and "were added" in store.warnings[0]


def test_a_dangling_link_in_place_of_an_entry_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    place = store.place("aa")
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "nowhere")
    entry, hit = store.make("aa", "say", produce)
    assert not hit and entry.file("deep/a").read_bytes() == b"a" and len(store.warnings) == 1


def test_an_entry_stays_where_it_cannot_be_read_for_want_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine lacks something, so nothing shows that the entry is corrupt."""
    store = Store(tmp_path)
    entry, _ = store.make("aa", "say", produce)

    def scarce(path: Path) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("optkit.ground.store.entry.digest_once", scarce)
        with pytest.raises(StorageError) as caught:
            store.get("aa")
    assert "ulimit" in str(caught.value.hint)
    assert store.get("aa") == entry and store.warnings == []


def test_who_publishes_second_takes_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder.fsync_tree

    def overtaken(place: Path) -> None:
        monkeypatch.setattr(folder, "fsync_tree", real)
        Store(tmp_path).add("say", produce, lambda meta, files: "aa")
        real(place)

    monkeypatch.setattr(folder, "fsync_tree", overtaken)
    store = Store(tmp_path)
    entry = store.add("say", produce, lambda meta, files: "aa")
    assert store.get("aa") == entry and store.warnings == []


def test_who_waits_for_the_lock_takes_what_was_made_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    lock = FileLock(tmp_path / "locks/aa.lock")
    lock.acquire()

    def made() -> None:
        Store(tmp_path).add("say", produce, lambda meta, files: "aa")
        lock.release()

    entry, hit = Store(tmp_path).make("aa", "say", lambda place: pytest.fail("made twice"), made)
    assert hit and entry.file("deep/a").read_bytes() == b"a"


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), durably(tmp_path / "f") as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_work_in_progress_is_private(tmp_path: Path) -> None:
    with Store(tmp_path).scratch() as work:
        assert work.stat().st_mode & 0o777 == 0o700
