"""The outputs with some layers in FP32 again, against the same quantities in float64."""

from __future__ import annotations

import numpy as np
import pytest

from optkit.facts.documents.report import LayerFidelity
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.execute.step import Foreign
from optkit.ground.execute.task import silent
from optkit.road.steps.bodies import compare_layers
from optkit.road.steps.compare_layers import CompareLayers
from tests.benchmarking.test_layer_comparison import (
    C2,
    CODES,
    FEEDS,
    FLOAT,
    S2,
    SR,
    W2,
    H,
    X,
    Y,
    forward,
    model,
    pair,
    sqnr,
)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> LayerFidelity:
    folder = tmp_path_factory.mktemp("compare")
    for name, text in (("reference", FLOAT), ("candidate", CODES)):
        (folder / name).mkdir()
        graph.save(model(text), folder / name / "model.onnx")
    (folder / "samples").mkdir()
    spool_writer.write(
        FEEDS, folder / "samples", (TensorInfo("x", "float32", ("N", 8)),), limit_samples=None,
        memory_bytes=1 << 20, progress=silent,
    )  # fmt: skip
    step = CompareLayers(
        reference=Foreign(folder / "reference"), graph=Foreign(folder / "candidate"),
        samples=Foreign(folder / "samples"), file="model.onnx",
        nodes={"first": "int8", "second": "int8"}, count=len(X), restored=2,
    )  # fmt: skip
    return compare_layers.run(step, folder, silent).layers


def test_all_layers_quantized(layers: LayerFidelity) -> None:
    assert layers.samples == len(X)
    expected = sqnr(Y, forward(X, pairs=True, codes=True)[1])
    assert layers.sqnr_db == pytest.approx(expected, abs=1e-2)


def alone() -> dict[str, float]:
    """SQNR of the outputs with one layer in floats."""
    codes, quantized = C2 * S2.astype(np.float64), forward(X, pairs=True, codes=True)[0]
    return {
        "first": sqnr(Y, pair(np.maximum(H, 0), SR) @ codes),
        "second": sqnr(Y, np.maximum(quantized, 0) @ W2),
    }


def test_one_layer_in_floats_again(layers: LayerFidelity) -> None:
    gains = {row.node: row.restored and row.restored.sqnr_db for row in layers.rows}
    assert gains == pytest.approx(alone(), abs=1e-2)


def test_without_the_pairs_that_clip(layers: LayerFidelity) -> None:
    (fault,) = (one for one in layers.faults if one.fault == "clipped")
    assert fault.pairs == ("qr", "qx")
    assert fault.without.sqnr_db is None  # their readers have no codes either
    gains = {one.pair: one.without and one.without.sqnr_db for one in layers.values}
    expected = alone()
    assert gains == pytest.approx({"qx": expected["first"], "qr": expected["second"]}, abs=1e-2)
