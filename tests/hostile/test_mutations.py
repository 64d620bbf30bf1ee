"""100 mutated graphs and artifacts: used, or refused with an error of optkit's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import optkit
from optkit.facts.errors import OptkitError
from optkit.ground.artifact import write
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from tests.artifact.test_artifact import MANIFEST, contents
from tests.conftest import ROOT
from tests.figures import Figures
from tests.hostile import mutations

GRAPHS, ARTIFACTS = 60, 40
EXPECTED = (5, 6, 7)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("cache"), listener=None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_a_mutated_graph(seed: int, tmp_path: Path, workspace: Workspace) -> None:
    try:
        api.inspect(mutations.graph(seed, tmp_path), workspace=workspace)
    except OptkitError as error:
        assert error.exit_code == 5, str(error)


@pytest.mark.parametrize("seed", range(ARTIFACTS))
def test_a_mutated_artifact(
    seed: int, tmp_path: Path, cache: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write(tmp_path / "whole", MANIFEST, contents())
    (tmp_path / "changed").mkdir()
    path = mutations.artifact(seed, whole.path, tmp_path / "changed")
    try:
        with optkit.load(path) as opened:
            opened.verify()
            opened.run({"x": np.zeros((2, 4), np.float32)})
    except OptkitError as error:
        assert error.exit_code in (*EXPECTED, 4), str(error)


@pytest.mark.slow
def test_bytes_that_a_runtime_opens_end_at_most_the_child(tmp_path: Path, figures: Figures) -> None:
    """What the intake lets pass, ONNX Runtime opens in a child. A child that dies is replaced."""
    times, at, deaths = figures.times(2_000, 100_000), 0, 0
    counts, progress = np.zeros(3, int), tmp_path / "progress"
    while at < times:
        line = [sys.executable, "-m", "tests.hostile.opened_bytes", str(at), str(times)]
        done = subprocess.run([*line, str(progress)], cwd=ROOT, check=False, capture_output=True)
        assert done.returncode <= 0, done.stderr.decode()  # a signal, or the end
        after, *told = map(int, progress.read_text().split())
        assert after > at
        at, counts, deaths = after, counts + told, deaths + (done.returncode != 0)
    assert counts.sum() + deaths == times
    assert counts[1:].min() > times // 100  # both ends of a try happen
    figures.tell(
        "random bytes that ONNX Runtime opens", times,
        "after the intake, in a child with 4 GiB and 20 s: refused by the intake, by ONNX Runtime, "
        f"or opened; {deaths} ended a child, none the command",
        intake=int(counts[0]), runtime=int(counts[1]), opened=int(counts[2]), deaths=deaths,
    )  # fmt: skip
