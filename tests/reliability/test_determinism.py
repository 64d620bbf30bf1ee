"""The same inputs give the same digest and the same bytes, wherever and however the build runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, Optkit, environment
from tests.figures import Figures
from tests.reliability.conftest import Demo
from tests.reliability.exports import EXAMPLES, FAMILIES

if TYPE_CHECKING:
    from tests.reliability.conftest import Reference

FILES = ("model.onnx", "simulation.onnx", "baseline/model.onnx", "recipe.yaml")


def one_cpu() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "before"),
    [
        ({"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}, None),
        ({"PYTHONHASHSEED": "4242", "TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"}, one_cpu),
    ],
    ids=["first", "one-cpu"],
)
def test_a_cold_build_elsewhere_is_the_same(
    env: dict[str, str],
    before: Callable[[], None] | None,
    demo: Demo,
    reference: Reference,
    tmp_path: Path,
) -> None:
    """Another folder for the store, the artifact and the process, hash seed, time zone, locale."""
    folder = tmp_path / "a folder with ümlauts"
    folder.mkdir()
    done = demo.run(cwd=folder, env=env, before=before)
    assert done.code == 0, done.stderr
    assert done.result["cache_hits"] == 0
    assert demo.artifact.digest == reference.digest
    first, second = reference.demo.artifact.manifest.files, demo.artifact.manifest.files
    assert first.keys() == second.keys()
    assert {name: first[name] for name in FILES} == {name: second[name] for name in FILES}
    assert fields(done.result) == fields(reference.result)


def fields(result: dict[str, object]) -> dict[str, object]:
    """What does not depend on the clock, the compiler's timings and the folder."""
    return {
        key: result[key]
        for key in (
            "status",
            "model",
            "target",
            "precision",
            "accuracy",
            "fidelity",
            "drop",
            "gate",
        )
    }


def two_cpus() -> None:
    os.sched_setaffinity(0, {*sorted(os.sched_getaffinity(0))[:2]})


PLACES = (
    {"TZ": "Asia/Tokyo", "LC_ALL": "C"}, {"TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"},
    {"TZ": "UTC", "LC_ALL": "POSIX"}, {"TZ": "Asia/Kathmandu", "LANG": "C.UTF-8"},
)  # fmt: skip


@pytest.mark.slow
def test_cold_builds_anywhere_are_the_same(
    small_project: Path, tmp_path: Path, figures: Figures
) -> None:
    """Hash seed, folder of the project, number of CPUs, time zone and locale."""
    elsewhere = tmp_path / "a folder with ümlauts"
    shutil.copytree(small_project, elsewhere)
    every = list(product(("0", "1", "7", "99", "4242"), (small_project, elsewhere),
                         (one_cpu, two_cpus), PLACES))  # fmt: skip
    digests = set()
    for seed, project, cpus, place in every[:: figures.times(19, 1)]:
        demo = Demo.small(tmp_path / "demo", project)
        done = demo.run(env={"PYTHONHASHSEED": seed, **place}, before=cpus)
        assert done.code == 0, done.stderr
        digests.add(demo.artifact.digest)
        shutil.rmtree(tmp_path / "demo")
    assert len(digests) == 1
    figures.tell(
        "cold builds: one digest", len(every),
        "5 hash seeds, 2 folders, 1 and 2 CPUs, 4 time zones and locales",
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory, optkit_apart: Optkit) -> list[Path]:
    """Two copies of the project at other paths, with the models of all examples."""
    first, second = (tmp_path_factory.mktemp(name) / name for name in ("here", "s ümewhere else"))
    for name in ("optkit", "examples", "recipes", "calibration", "eval", "tests/matrix"):
        shutil.copytree(ROOT / name, first / name)
    for name in ("pyproject.toml", "tests/reliability/exports.py"):
        (first / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, first / name)
    folder = first / "examples" / "02_tiny_llama"  # whose model is not committed
    trained = optkit_apart("--quick", "--out", folder, command=[sys.executable,
                           str(folder / "train.py")])  # fmt: skip
    assert trained.code == 0, trained.err
    shutil.copytree(first, second)
    return [first, second]


@pytest.mark.slow
def test_exported_graphs_are_the_same_bytes(
    checkouts: list[Path], figures: Figures, tmp_path: Path
) -> None:
    """Each process has another folder, or another order of its sets."""
    few = ("06_vit_int4", "bert")
    names = few if figures.file is None else (*EXAMPLES, *FAMILIES)
    first: dict[str, dict[str, str]] = {}
    for turn in range(figures.times(2, 20)):
        checkout, seed = checkouts[turn % 2], ("1", "4242")[(turn + turn // 2) % 2]
        done = subprocess.run(
            [sys.executable, "-m", "tests.reliability.exports", str(tmp_path / str(turn)), *names],
            cwd=checkout, env=environment(None, PYTHONPATH=str(checkout), PYTHONHASHSEED=seed),
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [*found] == [*names]
        first = first or found
        assert found == first, (checkout, seed)
        shutil.rmtree(tmp_path / str(turn))
        # an hour: a run that is stopped has told how far it came
        figures.tell(
            "exports of a model: the same bytes", (turn + 1) * len(names),
            f"{len(EXAMPLES)} examples and {len(FAMILIES)} families of models, each exported by "
            f"{turn + 1} processes in two checkouts with two hash seeds",
        )  # fmt: skip
