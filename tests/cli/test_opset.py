"""`model.opset`: files for runtimes that know no newer opset, equal to those without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.cli.test_quantized_products import FACTORS, project

Optkit = Callable[..., Any]


@pytest.fixture
def factors(tmp_path: Path) -> Path:
    return project(
        tmp_path / "factors",
        FACTORS.replace("batch,16", "batch,32"),
        [32],
        w_1=(32, 32),
        b_1=(32,),
        w_2=(8, 32),
    )


def outputs(file: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).standard_normal((5, 32)).astype(np.float32)
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


@pytest.mark.parametrize(
    ("asked", "opset"),
    [
        (("quantize", "-t", "cpu", "-p", "int8"), 19),
        pytest.param(("quantize", "-t", "cpu", "-p", "int8"), 20, marks=pytest.mark.slow),
        pytest.param(("quantize", "-t", "cpu", "-p", "int4"), 19, marks=pytest.mark.slow),
        pytest.param(("quantize", "-t", "l4", "-p", "int8"), 19, marks=pytest.mark.slow),
        pytest.param(("export",), 19, marks=pytest.mark.slow),
        pytest.param(("fuse",), 20, marks=pytest.mark.slow),
    ],
)
def test_the_graph_of_an_older_opset_loads_and_equals(
    asked: tuple[str, ...], opset: int, factors: Path, store: Path, optkit_here: Optkit
) -> None:
    for folder, more in (("new", ()), ("old", ("--set", f"model.opset={opset}"))):
        done = optkit_here(*asked, *more, "-o", folder, cwd=factors, cache=store)
        assert done.code == 0, done.err
    for file in sorted((factors / "old").glob("*.onnx")):
        written = onnx.load(file)
        assert (written.opset_import[0].version, written.ir_version) == (opset, 9)
        np.testing.assert_allclose(
            outputs(file), outputs(factors / "new" / file.name), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_blocks_of_four_bits_need_a_newer_opset(
    factors: Path, store: Path, optkit_here: Optkit
) -> None:
    done = optkit_here("quantize", "-t", "l4", "-p", "int4", "--set", "model.opset=20", "-o", "out",
                       cwd=factors, cache=store)  # fmt: skip
    assert done.code == 5
    assert "which opset 20 does not have" in done.err and "model.opset to 21" in done.err


def test_an_opset_before_the_oldest_is_refused(
    factors: Path, store: Path, optkit_here: Optkit
) -> None:
    done = optkit_here("fuse", "--set", "model.opset=17", "-o", "out", cwd=factors, cache=store)
    assert done.code == 2 and "opset" in done.err and "19" in done.err
