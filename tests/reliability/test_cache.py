"""A store that is damaged, used by several builds at once, or on a disk that is full."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from optkit.ground.execute.task import Task
from optkit.ground.store import Meta, Store, digest_file
from tests.figures import Figures
from tests.reliability.faulty_disk import works
from tests.reliability.test_io_faults import assert_clean, begun, identity

if TYPE_CHECKING:
    from tests.reliability.conftest import Demo, Finished, Reference
    from tests.reliability.faulty_disk.process import Disk

    Finish = Callable[[subprocess.Popen[str]], Finished]

KIB, MIB = 2**10, 2**20


def flip(entry: Path, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)


def truncate(entry: Path, file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def delete(entry: Path, file: Path) -> None:
    file.unlink()


def swap(entry: Path, file: Path) -> None:
    """By a file of another entry, of that name if there is one."""
    others = sorted(entry.parents[1].glob("*/*/*"), key=lambda path: path.name != file.name)
    shutil.copyfile(next(p for p in others if digest_file(p) != digest_file(file)), file)


def link(entry: Path, file: Path) -> None:
    """To the very bytes it should hold: they are outside the store, where anything may happen."""
    outside = entry.parents[2].parent / f"outside-{entry.name}"
    file.rename(outside)
    file.symlink_to(outside)


CORRUPTIONS = (flip, truncate, delete, swap, link)


def largest(entry: Path) -> Path:
    return max((path for path in entry.iterdir()), key=lambda path: path.stat().st_size)


def assert_rebuilt(demo: Demo, corrupt: Iterable[str], digest: str) -> None:
    """The next build finds exactly these entries corrupt, and its result is the same."""
    done = demo.run()
    assert done.code == 0, done.stderr
    told = re.findall(r"cache entry (\w+) was corrupt", done.stderr)
    assert sorted(told) == sorted(key[:12] for key in corrupt)
    assert demo.artifact.digest == digest
    assert sorted(p.name.partition("-")[0] for p in demo.cache.glob("quarantine/*")) == sorted(
        corrupt
    )
    demo.assert_sound()


@pytest.mark.slow
def test_corrupt_entries_are_rebuilt(reference: Reference, tmp_path: Path) -> None:
    """Five kinds of damage, at entries that are made in about a second."""
    demo = reference.fork(tmp_path)
    keys = {step: key for key, step in demo.entries().items()}
    chosen = [keys[step] for step in ("cast", "calibrate", "quantize", "fuse", "predict")]
    for corrupt, key in zip(CORRUPTIONS, chosen, strict=True):
        entry = demo.cache / "steps" / key[:2] / key
        corrupt(entry, largest(entry))
    assert_rebuilt(demo, chosen, reference.digest)


@pytest.mark.slow
@pytest.mark.parametrize("shift", range(len(CORRUPTIONS)))
def test_every_damage_at_every_entry(shift: int, reference: Reference, tmp_path: Path) -> None:
    """All entries are damaged at once, each in another way; five turns give each entry each way."""
    demo = reference.fork(tmp_path)
    entries = sorted(demo.entries())
    places = [demo.cache / "steps" / key[:2] / key for key in entries]
    for number, entry in enumerate(places):
        CORRUPTIONS[(number + shift) % len(CORRUPTIONS)](entry, largest(entry))
    assert_rebuilt(demo, entries, reference.digest)


@pytest.mark.slow
def test_the_rest_of_the_store_is_not_trusted_either(reference: Reference, tmp_path: Path) -> None:
    """Staged weights, lists of what code read, locks, whole entries that are links or files."""
    demo = reference.fork(tmp_path)
    for path in demo.cache.glob("objects/*/*"):
        flip(path.parent, path)
    for path in demo.cache.glob("reads/*"):
        truncate(path.parent, path)
    for path in demo.cache.glob("locks/*"):
        path.write_bytes(b"left by nobody")
    by_step = {step: key for key, step in demo.entries().items()}
    keys = [by_step[step] for step in ("cast", "fuse")]
    linked, filed = (demo.cache / "steps" / key[:2] / key for key in keys)
    shutil.rmtree(linked)
    linked.symlink_to(tmp_path / "nowhere")
    shutil.rmtree(filed)
    filed.write_text("not a folder")
    assert_rebuilt(demo, keys, reference.digest)


def test_verify_tells_and_quarantines(reference: Reference, tmp_path: Path) -> None:
    demo = reference.fork(tmp_path)
    key = sorted(demo.entries())[0]
    entry = demo.cache / "steps" / key[:2] / key
    flip(entry, largest(entry))
    for code, corrupt in ((7, [key]), (0, [])):
        done = demo.run("cache", "verify", "--json")
        assert (done.code, done.result["corrupt"]) == (code, corrupt)


CODE = "export digits-vit"
"""The step that runs the user's factory, which every command does."""


def runs(stderr: str) -> Counter[str]:
    """Label → how often a worker ran it."""
    return Counter(re.findall(r"^ +[0-9.]+ s  (.+)$", stderr, re.MULTILINE))


def build_at_once(demo: Demo, count: int, finish: Finish) -> tuple[Counter[str], int]:
    """Runs of all builds together, and the hits they had."""
    processes = [demo.start() for _ in range(count)]
    done = [finish(process) for process in processes]
    assert [one.code for one in done] == [0] * count, [one.stderr for one in done]
    return (
        sum((runs(one.stderr) for one in done), Counter()),
        sum(one.result["cache_hits"] for one in done),
    )


@pytest.mark.slow
def test_two_builds_at_once_do_the_rest_once(
    reference: Reference, tmp_path: Path, finish: Finish
) -> None:
    demo = reference.fork(tmp_path, without=("cast", "quantize", "predict"))
    ran, hits = build_at_once(demo, 2, finish)
    entries = len(reference.demo.entries())
    assert ran == {
        "cast to FP16": 1, "cast the smoothed graph to FP16": 1,
        "quantize to int8": 1,
        **{f"predict latency of {side}": 1 for name in ("int8", "fp16")
           for side in (name, f"{name} with tensorrt-rtx")},
    }  # fmt: skip
    assert hits == 2 * entries - ran.total()
    assert demo.artifact.digest == reference.digest
    demo.assert_sound()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_cold_builds_at_once_do_each_step_once(
    count: int, demo: Demo, reference: Reference, finish: Finish
) -> None:
    ran, hits = build_at_once(demo, count, finish)
    entries = len(reference.demo.entries())
    assert ran[CODE] == count and ran.total() - (count - 1) == len(demo.entries()) == entries
    assert hits == (count - 1) * (entries - 1)
    assert demo.artifact.digest == reference.digest
    demo.assert_sound()


def small_build(root: Path, log: Path) -> None:
    """One of many, in a folder of artifacts of its own."""

    def logged(task: Task, *more: Any, **options: Any) -> Meta:
        with log.open("a") as file:
            file.write(f"{task.step}\n")
        return works.in_this_process(task, *more, **options)

    built = works.build(root, lambda promise: None, executor=logged)
    with log.with_name("digests").open("a") as file:
        file.write(f"{built['digest']}\n")


@pytest.mark.slow
def test_sixteen_builds_at_once_do_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    """In forks of this process, which has imported all that they need."""
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "cache"))
    works.network(tmp_path)
    alone = works.build(tmp_path, lambda promise: None)["digest"]
    entries = {key for key, *_ in Store(tmp_path / "cache").entries()}
    for place in ("cache", "out"):
        shutil.rmtree(tmp_path / place)
    count, fork = figures.times(4, 16), multiprocessing.get_context("fork")
    builds = [
        fork.Process(target=small_build, args=(tmp_path, tmp_path / "log")) for _ in range(count)
    ]
    for build in builds:
        build.start()
    for build in builds:
        build.join()
    assert [build.exitcode for build in builds] == [0] * count
    assert (tmp_path / "digests").read_text().split() == [alone] * count
    ran = Counter((tmp_path / "log").read_text().split())
    assert ran.total() == len(entries) - 1  # all but the samples, which no executor collects
    assert {key for key, *_ in Store(tmp_path / "cache").entries()} == entries
    figures.tell("16 builds at once", count, "small builds for the CPU: each step runs once")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["fuse", "compile"])
def test_the_disk_of_the_store_is_full(
    step: str, reference: Reference, tmp_path: Path, disk: Callable[[int], Path]
) -> None:
    elsewhere = reference.fork(tmp_path / "elsewhere", without=(step,))
    demo = replace(elsewhere, cache=disk(64 * MIB) / "cache")
    shutil.copytree(elsewhere.cache, demo.cache)
    weights = sum(path.stat().st_size for path in demo.cache.glob("objects/*/*"))
    disk(used(demo.cache) + weights + 100 * KIB)  # the weights are copied in again
    before = demo.entries()
    assert_no_room(demo.run())
    assert demo.entries() == before
    assert list(demo.cache.glob("tmp/*")) == []
    assert {path.name for path in demo.out.glob("*")} <= {".gitignore"}
    disk(64 * MIB)
    assert demo.rebuilt() == reference.digest
    demo.assert_sound()


@pytest.mark.slow
def test_a_disk_that_grows_step_by_step(
    demo: Demo, reference: Reference, disk: Callable[[int], Path]
) -> None:
    """Full at one step after the other; each run goes on where the last one ended."""
    demo = replace(demo, cache=disk(MIB) / "cache")
    codes = []
    for size in range(400 * KIB, 64 * MIB, 600 * KIB):
        disk(size)
        done = demo.run()
        codes.append(done.code)
        if done.code == 0:
            break
        assert_no_room(done)
        assert demo.store.verify()[1] == []
        assert list(demo.cache.glob("tmp/*")) == []
        assert {path.name for path in demo.out.glob("*")} <= {".gitignore"}
    assert codes[-1] == 0 and len(codes) > 5
    assert demo.artifact.digest == reference.digest
    demo.assert_sound()


@pytest.mark.slow
def test_the_disk_of_the_artifact_is_full(
    reference: Reference, tmp_path: Path, disk: Callable[[int], Path]
) -> None:
    """The older artifact of that name survives; nothing of the new one is there."""
    demo = replace(reference.fork(tmp_path / "store"), out=disk(64 * MIB) / "artifacts")
    reference.keep_artifact(demo)
    older = demo.artifact.manifest
    disk(used(demo.out) + MIB)
    assert_no_room(demo.run())
    assert demo.artifact.manifest == older
    assert {path.name for path in demo.out.iterdir()} == {".gitignore", older.name}
    assert used(demo.out) < sum(file.size for file in older.files.values()) + MIB
    disk(64 * MIB)
    assert demo.rebuilt() == reference.digest
    assert demo.artifact.manifest != older  # it says how long it took, and that all were hits
    demo.assert_sound()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "limit"),
    [
        pytest.param((), 200 * KIB, id="staging"),
        pytest.param(("fuse",), 500 * KIB, id="graph", marks=pytest.mark.slow),
        pytest.param(("compile",), MIB, id="engine", marks=pytest.mark.slow),
        pytest.param((), MIB, id="artifact", marks=pytest.mark.slow),
    ],
)
def test_no_file_may_grow_so_large(
    missing: tuple[str, ...], limit: int, reference: Reference, tmp_path: Path
) -> None:
    """The other way in which writing fails half way, on any machine."""
    demo = reference.fork(tmp_path, without=missing)
    reference.keep_artifact(demo)
    older, before = demo.artifact.manifest, demo.entries()
    limits = (limit, resource.RLIM_INFINITY)
    assert_no_room(demo.run(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)))
    assert demo.entries() == before
    assert demo.artifact.manifest == older
    demo.assert_sound()
    assert demo.rebuilt() == reference.digest


@pytest.mark.slow
def test_a_disk_of_each_size(
    faulty: Disk, disk: Callable[[int], Path], tmp_path: Path, figures: Figures
) -> None:
    """A small build with everything on one disk: the older artifact stays until the newer one fits,
    and on a larger disk the same command goes on."""
    start = begun(tmp_path / "start", faulty)
    older, sizes = identity(start), figures.times(4, 64)
    shutil.copytree(start, tmp_path / "sound")
    assert faulty.do("build", tmp_path / "sound")["code"] == 0
    newer = identity(tmp_path / "sound")
    root = disk(64 * MIB) / "root"
    shutil.copytree(tmp_path / "sound", root)
    needed = used(root)
    codes = Counter[int]()
    for number in range(sizes):
        shutil.rmtree(root)
        shutil.copytree(start, root)
        at_first = used(root)
        disk(at_first + number * (2 * needed - at_first) // sizes)
        done = faulty.do("build", root)
        assert done["code"] in (0, 8), done
        assert identity(root) == (older if done["code"] else newer)
        codes[done["code"]] += 1
        disk(64 * MIB)
        assert faulty.do("build", root)["code"] == 0
        assert identity(root) == newer
        assert_clean(root)
    assert codes[0] and codes[8] > codes[0]
    figures.tell("a disk of each size is full", sizes,
                 f"{codes[8]} builds ended with exit code 8, {codes[0]} fitted")  # fmt: skip


def assert_no_room(done: Finished) -> None:
    assert done.code == 8, done.stderr
    assert done.result["error"]["code"] == "storage"
    assert done.result["error"]["where"] and done.result["error"]["hint"]


def used(folder: Path) -> int:
    """Bytes taken from the disk that the folder is on."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize
