"""Digests of files and folders: of all that is in them, in any order, and of nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from optkit.ground.store import digest_file, digest_once, digest_tree, digests, tree_bytes


def folder(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    return path


@pytest.mark.parametrize("read", [digest_file, digest_once])
def test_only_a_regular_file_has_a_digest(read: Callable[[Path], str]) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read(Path("/dev/null"))


def test_the_digest_of_a_folder_is_that_of_its_names_and_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = digest_tree(folder(tmp_path / "one", "a", "b", "deep/c"))
    assert digest_tree(folder(tmp_path / "two", "deep/c", "b", "a")) == whole
    real = digests._tree
    monkeypatch.setattr(digests, "_tree", lambda *asked: reversed([*real(*asked)]))
    assert digest_tree(tmp_path / "one") == whole
    (tmp_path / "two/b").rename(tmp_path / "two/bb")  # at the same place in their order
    assert digest_tree(tmp_path / "two") != whole
    (tmp_path / "one/a").write_text("b")
    assert digest_tree(tmp_path / "one") != whole


def test_what_is_no_content_does_not_count(tmp_path: Path) -> None:
    whole = digest_tree(folder(tmp_path, "a"))
    folder(tmp_path, "__pycache__/a.pyc", "left.out")
    assert digest_tree(tmp_path, (".out",)) == whole != digest_tree(tmp_path)
    assert tree_bytes(tmp_path, (".out",)) == len("a")


def test_a_folder_that_leads_back_to_itself_has_a_digest(tmp_path: Path) -> None:
    folder(tmp_path, "a")
    (tmp_path / "up").symlink_to(tmp_path)
    assert tree_bytes(tmp_path) == 1


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as large, in this process that has hashed no other."""
    monkeypatch.setattr(digests, "_LARGE", 1)
    monkeypatch.setattr(digests, "_digests", {})
    (tmp_path / "f").write_bytes(b"first")
    return tmp_path / "f"


def test_a_large_file_that_changes_while_it_is_read_is_read_again(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hashlib.file_digest

    def late(file: BinaryIO, name: str) -> Any:
        found = real(file, name)
        large.write_bytes(b"other bytes")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", late)
        first = digest_once(large)
    assert digest_once(large) == digest_file(large) != first


def test_a_large_file_that_has_changed_and_got_a_name_is_read_again(large: Path) -> None:
    first = digest_once(large)
    before = large.stat()
    large.write_bytes(b"other")
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    large.with_name("g").hardlink_to(large)
    assert digest_once(large) == digest_file(large) != first


def test_a_file_by_itself_has_the_digest_and_the_bytes_of_its_content(tmp_path: Path) -> None:
    folder(tmp_path, "weights")
    assert digest_tree(tmp_path / "weights") == hashlib.sha256(b"weights").hexdigest()
    assert tree_bytes(tmp_path / "weights") == len("weights")
