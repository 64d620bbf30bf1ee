"""A remote that lies, hesitates, refuses, is full, disappears and comes back: a command gets the
right bytes or a typed error, and says once what is wrong."""

from __future__ import annotations

import errno
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from optkit.facts.errors import OptkitError
from optkit.ground.store import Entry, Meta, Remote, Store
from tests.figures import Figures

URL = "lying://place"
KEYS = ("aa", "bb", "cc")


class Lying(MemoryFileSystem):
    """Files in memory; `rate`: how often a call does not do what it should. It renames, as a disk
    does."""

    protocol = "lying"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    rng = random.Random(0)
    rate = 0.0
    lies: ClassVar[Counter[str]] = Counter()
    gone_for = 0  # so many calls

    def _lie(self, *kinds: str) -> str:
        """One of these kinds, or "". While it has disappeared, it answers no call."""
        if Lying.gone_for > 0:
            Lying.gone_for -= 1
            raise ConnectionError("disappeared")
        if self.rng.random() >= self.rate:
            return ""
        kind = self.rng.choice([*kinds, "slow", "disappears"])
        Lying.lies[kind] += 1
        if kind == "slow":
            time.sleep(0.001)
        if kind == "disappears":
            Lying.gone_for = self.rng.randrange(4)
            raise ConnectionError("disappeared")
        return kind

    def _bytes(self, path: str, kind: str, data: bytes) -> bytes:
        if kind == "another's":
            place = path.strip("/").split("/")[1]
            others = [p for p in sorted(self.store) if f"/{place}/" in p and p != path]
            return bytes(super().cat_file(self.rng.choice(others))) if others else data
        if kind == "wrong bytes" and data:
            at = self.rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data[: len(data) // 2] if kind == "cut" else data

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        kind = self._lie("wrong bytes", "cut", "another's", "missing")
        if kind == "missing":
            raise FileNotFoundError(path)
        return self._bytes(path, kind, bytes(super().cat_file(path)))

    def get_file(self, rpath: str, lpath: str, *args: Any, **kwargs: Any) -> None:
        kind = self._lie("wrong bytes", "cut", "another's", "missing", "half way")
        if kind == "missing":
            raise FileNotFoundError(rpath)
        data = bytes(super().cat_file(rpath))
        Path(lpath).write_bytes(self._bytes(rpath, "cut" if kind == "half way" else kind, data))
        if kind == "half way":
            raise ConnectionError("disappeared half way")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if self._lie("missing") == "missing":
            raise FileNotFoundError(path)
        return dict(super().info(path))

    def _write(self, path: str, data: bytes) -> None:
        kind = self._lie("wrong bytes", "cut", "full", "refused", "half way")
        if kind == "refused":
            raise PermissionError("Access Denied")
        broken = kind in ("full", "half way")
        super().pipe_file(path, self._bytes(path, "cut" if broken else kind, data))
        if broken:
            raise OSError(errno.ENOSPC, "full") if kind == "full" else ConnectionError("half way")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._write(path, value)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self._write(rpath, Path(lpath).read_bytes())

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if self._lie("rename refused") == "rename refused":
            raise PermissionError("rename: not permitted")
        self.store[self._strip_protocol(path2)] = self.store.pop(self._strip_protocol(path1))


@pytest.fixture
def lying() -> Iterator[type[Lying]]:
    fsspec.register_implementation("lying", Lying, clobber=True)
    Lying.rate, Lying.gone_for = 0.0, 0
    Lying.lies.clear()
    yield Lying
    Lying.store.clear()
    Lying.rate, Lying.gone_for = 0.0, 0


def contents(key: str) -> dict[str, bytes]:
    return {"a": key.encode() * 50, "deep/b": b"same in all", "empty": b""}


def made(store: Store, key: str) -> Entry:
    def produce(folder: Path) -> Meta:
        for name, data in contents(key).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return {"key": key}

    entry, _ = store.make(key, "say", produce)
    assert {name: entry.file(name).read_bytes() for name in entry.files} == contents(key)
    assert entry.meta == {"key": key}
    return entry


def test_no_lie_of_a_remote_is_believed(
    lying: type[Lying], tmp_path: Path, figures: Figures
) -> None:
    """Two machines share what they make through it; then it is sound again."""
    told, full = 0, figures.times(60, 1000)
    turn = 0
    while lying.lies.total() < full:
        turn += 1
        root = tmp_path / str(turn)
        lying.store.clear()
        lying.rng, lying.rate, lying.gone_for = random.Random(turn), 0.15, 0
        for machine in ("one", "two", "one"):
            try:
                store = Store(root / machine, Remote(URL))
            except OptkitError as error:  # it is given up before any work
                assert error.exit_code == 8
                continue
            for key in KEYS:
                made(store, key)
                store.remember(key, {"of": key})
                store.share_record(key, {"of": key})
                assert all(record == {"of": key} for record in store.recalled(key))
            lost = [text for text in store.warnings if "going on without it" in text]
            refused = [text for text in store.warnings if "only reading from it" in text]
            corrupt = [text for text in store.warnings if "was corrupt" in text]
            assert len(lost) <= 1 and len(refused) <= 1 and len(corrupt) <= len(KEYS)
            assert len(store.warnings) == len(lost) + len(refused) + len(corrupt)
            told += len(store.warnings)
            assert not list((root / machine / "tmp").iterdir())
            assert store.verify() == (len(KEYS), [])
        lying.rate, lying.gone_for = 0.0, 0
        for mark in [path for path in lying.store if path.endswith("optkit.json")]:
            del lying.store[mark]  # it may be damaged: then the place is refused
        third = Store(root / "three", Remote(URL))
        for key in KEYS:
            made(third, key)
    assert told and len(lying.lies) == 10
    how = ", ".join(sorted(lying.lies))
    figures.tell("a remote that lies", lying.lies.total(), how)
