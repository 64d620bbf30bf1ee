"""100 mutated graphs and artifacts: used, or refused with an error of optkit's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import optkit
from optkit import api
from optkit.artifact import write
from optkit.errors import OptkitError
from optkit.workspace import Workspace
from tests.artifact.test_artifact import MANIFEST, contents
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
