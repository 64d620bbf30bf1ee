"""What a command promises is on the disk: bytes are synced before the rename that shows them, and
the folder with the new name after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from optkit.ground.store import Meta, Store, make_folder, write_durably
from tests.synced import renames


def produce(folder: Path) -> Meta:
    (folder / "a").write_bytes(b"a")
    (folder / "deep").mkdir()
    (folder / "deep/b").write_bytes(b"b")
    return {}


def test_an_entry_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has just made the folder of the entry, and has not synced it."""
    store, around = Store(tmp_path), renames(monkeypatch)
    store.place("aabb").parent.mkdir(parents=True)
    store.make("aabb", "say", produce)
    source, before, after = around(tmp_path / "steps/aa/aabb")
    names = ("", "a", "deep", "deep/b", "entry.json")
    assert before >= {source / name for name in names}
    assert after >= {tmp_path / "steps/aa", tmp_path / "steps"}


def test_a_record_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = renames(monkeypatch)
    Store(tmp_path).remember("zz", {"a": 1})
    _, before, after = around(tmp_path / "records/zz.json")
    assert tmp_path in before  # which has the new folder
    assert tmp_path / "records" in after


def test_a_file_is_on_the_disk_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = renames(monkeypatch)
    write_durably(tmp_path / "f", b"new")
    source, before, after = around(tmp_path / "f")
    assert source in before and tmp_path in after


def test_each_new_folder_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("optkit.ground.store.disk.fsync_dir", synced.append)
    make_folder(tmp_path / "a/b")
    assert synced == [tmp_path, tmp_path / "a"]
