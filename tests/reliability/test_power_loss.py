"""The power is lost at any moment: what a store and folders of results hold then is whole, and what
was promised before is there."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optkit.ground.artifact import Artifact
from optkit.ground.store import Store, digest_file
from optkit.ground.store import entry as entries
from tests.figures import Figures
from tests.reliability.faulty_disk import works
from tests.reliability.faulty_disk.crash_states import Disk as Crashing
from tests.reliability.faulty_disk.crash_states import recorded, write
from tests.reliability.faulty_disk.process import Disk
from tests.reliability.test_io_faults import begun, identity

Promise = dict[str, Any]


def about(promise: Promise) -> tuple[str, ...]:
    """What a promise is about; a later one replaces it."""
    kind = next(iter(promise))
    if kind == "artifact":
        return kind, promise["out"]
    return kind, promise[kind]


def is_kept(promise: Promise, root: Path) -> bool:
    """Whether all of it is there."""
    kind, name = about(promise)
    if kind == "entry":
        place = Store(root / "cache").place(name)
        return place.exists() and dict(entries.read(place, name).files) == promise["files"]
    if kind == "record":
        return bool(Store(root / "cache").recall(name) == promise["value"])
    if kind == "file":
        return (root / name).is_file() and (root / name).read_text() == promise["text"]
    if kind == "folder":
        files = {path: root / name / path for path in promise["files"]}
        return all(path.is_file() and digest_file(path) == promise["files"][file]
                   for file, path in files.items())  # fmt: skip
    if not (root / name / works.NAME).exists():
        return False
    found = Artifact.load(root / name / works.NAME)
    found.verify()
    return bool(found.digest == promise["artifact"])


def is_absent(promise: Promise, root: Path) -> bool:
    kind, name = about(promise)
    if kind in ("entry", "record"):
        store = Store(root / "cache")
        return not store.place(name).exists() if kind == "entry" else store.recall(name) is None
    return not (root / name / (works.NAME if kind == "artifact" else "")).exists()


def check(
    root: Path, before: list[Promise], now: list[Promise], all_of_them: list[Promise]
) -> None:
    """Of everything there is the last promise, or a later one that was about to be given; what was
    not promised is whole or absent."""
    assert Store(root / "cache").verify()[1] == []  # so entries are whole, from here on
    last = {about(promise): promise for promise in (*before, *now)}
    for thing in {about(promise) for promise in all_of_them}:
        later = [p for p in all_of_them[len(now) :] if about(p) == thing]
        promised = [last[thing]] if thing in last else []
        kept = any(is_kept(promise, root) for promise in (*promised, *later))
        assert kept or (not promised and is_absent(later[0], root)), thing


def lose_power(faulty: Disk, start: Path, work: str, scratch: Path, most: int) -> Iterator[Path]:
    """The disk in each state in which the power may be lost while a work is done in `start`, after
    it was checked. `most`: states of one moment, about."""
    before = [{"artifact": identity(start)[0], "out": "out"}]
    crashing, rng = Crashing(start), random.Random(work)
    scratch.mkdir()
    done = faulty.do(work, start, record=scratch / "record")
    assert done["code"] == 0, done
    changes, seen = recorded(scratch / "record"), set()
    promises = [json.loads(change.data) for change in changes if change.name == "mark"]
    assert promises
    for change in changes:
        crashing.apply(change)
        for tree in crashing.states(rng, most):
            state = hash((tuple(sorted(tree.items())), len(crashing.promises)))
            if state not in seen:
                seen.add(state)
                write(tree, scratch / "state")
                check(scratch / "state", before, crashing.promises, promises)
                yield scratch / "state"
                shutil.rmtree(scratch / "state")


@pytest.mark.slow
def test_power_is_lost_while_something_is_published(
    faulty: Disk, tmp_path: Path, figures: Figures
) -> None:
    begun(tmp_path / "begun", faulty)
    works = ("publish", "remember", "state", "stage", "artifact", "export", "package")
    counts = {}
    for work in works:
        start, most = tmp_path / work, figures.times(3, 64)
        shutil.copytree(tmp_path / "begun", start)
        counts[work] = sum(
            1 for _ in lose_power(faulty, start, work, tmp_path / f"{work}-scratch", most)
        )
    how = ", ".join(f"{count} × {work}" for work, count in counts.items())
    figures.tell("power loss while one thing is published", sum(counts.values()),
                 f"states that a disk may have: {how}")  # fmt: skip


@pytest.mark.slow
def test_power_is_lost_during_a_build(faulty: Disk, tmp_path: Path, figures: Figures) -> None:
    """After some of the losses, the same command goes on."""
    start, sound = begun(tmp_path / "start", faulty), tmp_path / "sound"
    shutil.copytree(start, sound)
    assert faulty.do("build", sound)["code"] == 0
    every, states, again = figures.times(400, 25), 0, 0
    for root in lose_power(faulty, start, "build", tmp_path / "scratch", 2):
        states += 1
        if states % every == 0:
            (root / "tmp").mkdir(exist_ok=True)
            assert faulty.do("build", root)["code"] == 0
            assert identity(root) == identity(sound)
            again += 1
    assert again
    figures.tell("power loss during a build", states,
                 f"states that a disk may have; in {again} of them the build goes on")  # fmt: skip
