"""The k-th call to the disk fails, for every k of a whole build: a typed error, the older artifact
stays, and the next build gives the right one."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from optkit.ground.artifact import Artifact
from optkit.ground.store import Store, eviction
from optkit.ground.store.entry import read
from tests.figures import Figures
from tests.reliability.faulty_disk import works
from tests.reliability.faulty_disk.process import KINDS, Disk

ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR, errno.EDQUOT)
NEVER = (0, 10**9, errno.EIO)
Fault = tuple[int, int, int]
"""Kind, k, errno."""
Entries = dict[str, dict[str, str]]
"""Key → files."""


def identity(root: Path) -> tuple[str, dict[str, str]]:
    """The artifact of a build; its files without the reports, which tell times."""
    artifact = Artifact.load(root / "out" / works.NAME)
    artifact.verify()
    files = {name: file.sha256 for name, file in artifact.manifest.files.items()}
    return artifact.digest, {name: sha for name, sha in files.items() if "report" not in name}


def entries_of(root: Path) -> Entries:
    store = Store(root / "cache")
    return {key: dict(read(store.place(key), key).files) for key, *_ in store.entries()}


def begun(folder: Path, faulty: Disk) -> Path:
    """A folder with a model and an older artifact of it, and an empty store."""
    (folder / "tmp").mkdir(parents=True)
    works.network(folder)
    done = faulty.do("build", folder, options={"max_drop": 0.05})
    assert done["code"] == 0, done
    shutil.rmtree(folder / "cache")
    return folder


def fails(
    faulty: Disk, root: Path, fault: tuple[int, int, int], part: str | None
) -> dict[str, Any]:
    """The end of a build, one call of which fails."""
    done = faulty.do("build", root, fail=fault, **({"part": part} if part else {}))
    assert done["failed"], "it never came to this call"
    kind, _, number = fault
    # an entry whose bytes cannot be read is as a damaged one; the model is no part of the store
    unread = KINDS[kind] == "open" and number not in (errno.EMFILE, errno.EINTR)
    foreign = done["failed"].endswith("net.onnx")
    assert done["code"] in (0, 8, *((7,) if unread else ()), *((5,) if foreign else ())), done
    assert Store(root / "cache").verify()[1] == []
    # if the removal of a temporary folder failed, only the system can remove it
    assert not [*root.glob("tmp/*")] or Path(done["failed"]).is_relative_to(root / "tmp")
    shutil.rmtree(root / "tmp")
    (root / "tmp").mkdir()
    return done


def assert_clean(root: Path) -> None:
    store = Store(root / "cache")
    eviction.gc(store, 1 << 40)
    assert not [*root.glob("cache/tmp/*"), *root.glob("cache/quarantine/*")]
    assert {path.name for path in (root / "out").iterdir()} == {".gitignore", works.NAME}


def renewed(root: Path, saved: Path) -> None:
    shutil.rmtree(root)
    shutil.copytree(saved, root)


@dataclass
class Sweep:
    """Chooses calls of a part of a build and lets them fail, one after the other."""

    faulty: Disk
    few: int | None
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    errors: Iterator[int] = field(default_factory=lambda: itertools.cycle(ERRORS))
    failed: Counter[str] = field(default_factory=Counter)

    def faults(self, counts: list[int]) -> Iterator[Fault]:
        points = [(kind, k) for kind, count in enumerate(counts) for k in range(1, count + 1)]
        for kind, k in points if self.few is None else self.rng.sample(points, self.few):
            self.failed[KINDS[kind]] += 1
            yield kind, k, next(self.errors)

    def part(self, root: Path, saved: Path, part: str, older: Any, entries: Entries) -> bool:
        """Each call of the part fails once, and then the part is done again. False if the build has
        no such part."""
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(root, saved)
        sound = self.faulty.do("build", root, fail=NEVER, part=part)
        if not sound.get("stopped"):
            return False
        for fault in self.faults(sound["counts"]):
            renewed(root, saved)
            fails(self.faulty, root, fault, part)
            assert identity(root) == older
            assert self.faulty.do("build", root, fail=NEVER, part=part)["code"] == 0
            assert entries_of(root).items() <= entries.items()
        for checkpoint in root.glob("cache/tmp/resume-*"):  # the build was stopped before that
            shutil.rmtree(checkpoint)
        assert_clean(root)
        return True


@pytest.mark.slow
def test_any_call_of_a_build_fails(faulty: Disk, tmp_path: Path, figures: Figures) -> None:
    start, root, saved = begun(tmp_path / "start", faulty), tmp_path / "root", tmp_path / "saved"
    older = identity(start)
    shutil.copytree(start, root)
    assert faulty.do("build", root)["code"] == 0
    newer, entries = identity(root), entries_of(root)
    assert older != newer
    renewed(root, start)
    sweep = Sweep(faulty, None if figures.times(0, 1) else 1)
    assert sweep.part(root, saved, "before", older, entries)
    while sweep.part(root, saved, "step", older, entries):
        pass
    # with all steps in the store: what the build reads and delivers
    assert identity(root) == newer and entries_of(root) == entries
    renewed(root, saved)
    counts = faulty.do("build", root, fail=NEVER)["counts"]
    for fault in sweep.faults(counts):
        renewed(root, saved)
        done = fails(faulty, root, fault, None)
        # the call may have failed after the exchange of the artifacts
        assert identity(root) in ((newer,) if done["code"] == 0 else (older, newer)), done
        assert faulty.do("build", root)["code"] == 0
        assert identity(root) == newer and entries_of(root) == entries
        assert_clean(root)
    how = ", ".join(f"{count} × {kind}" for kind, count in sweep.failed.items())
    figures.tell("k-th call of a whole build fails", sweep.failed.total(),
                 f"every call with one of {len(ERRORS)} errors: {how}")  # fmt: skip
