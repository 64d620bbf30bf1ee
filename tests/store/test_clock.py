"""The clock jumps while stores are in use. A jump is the same as that every file, and every time
that a process remembers, is older or younger by it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from optkit.ground.store import Meta, Store, digests, eviction
from optkit.ground.store.entry import Entry
from tests.figures import Figures

HOUR, YEAR = 3600.0, 365 * 86400.0
JUMPS = (-YEAR, -3 * HOUR, -5.0, 5.0, 3 * HOUR, YEAR)


def jump(root: Path, seconds: float, *running: Store) -> None:
    """The clock goes forward, or back, while these stores are in use."""
    for path in (root, *root.rglob("*")):
        facts = path.lstat()
        os.utime(path, (facts.st_atime - seconds, facts.st_mtime - seconds), follow_symlinks=False)
    for store in running:
        store.lease._began -= seconds
        store.lease._started -= seconds


def make(store: Store, key: str) -> Entry:
    def produce(folder: Path) -> Meta:
        (folder / "a").write_text(key * 100)
        return {}

    return store.make(key, "say", produce)[0]


REMOVALS: dict[str, Callable[[Store], object]] = {
    "gc": lambda store: eviction.gc(store, 0),
    "clear": eviction.clear,
    "forget": lambda store: eviction.forget(store, "say"),
}


def test_nothing_in_use_is_removed(tmp_path: Path, figures: Figures) -> None:
    """A command uses one entry before a jump, makes one after it, and another command removes what
    it can, before or after a further jump."""
    cases = itertools.product(JUMPS, (0.0, *JUMPS), REMOVALS)
    chosen = list(cases)[:: figures.times(7, 1)]
    for number, (first, second, how) in enumerate(chosen):
        root = tmp_path / str(number)
        running = Store(root)
        before = make(running, "before")
        jump(root, first, running)
        after = make(running, "after")
        running.remember("record", {"a": 1})
        jump(root, second, running)
        REMOVALS[how](Store(root))
        assert before.file("a").read_text() == "before" * 100, (first, second, how)
        assert after.file("a").read_text() == "after" * 100, (first, second, how)
        assert running.get("before") == before and running.get("after") == after
        assert all(entry.seconds >= 0 for entry in (before, after))
        del running
        assert eviction.clear(Store(root))[1] == 0
    how = "up to a year forward or back, then gc, clear or forget of another command"
    figures.tell("jumps of the clock beside a running command", len(chosen), how)


@pytest.mark.parametrize("seconds", [0.0, *JUMPS])
def test_a_file_that_has_changed_is_read_again_whatever_its_time(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is the one of before, or one that a jump has left; its size is the same."""
    monkeypatch.setattr(digests, "_LARGE", 10)
    store = Store(tmp_path)
    file = make(store, "key").file("a")
    assert store.get("key") is not None
    facts = file.stat()
    with file.open("r+b") as changed:
        changed.write(b"K")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + int(seconds * 1e9)))
    assert store.get("key") is None
    assert make(store, "key").file("a").read_text() == "key" * 100
