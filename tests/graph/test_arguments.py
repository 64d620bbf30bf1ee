"""Inputs that are shapes, axes or indices: their numbers come from the graph, or are asked for."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.road.steps import perform
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH


def run(folder: Path, text: str, **feed: np.ndarray) -> dict[str, Any]:
    """The fuse step as a build runs it; with a feed, on that as its samples."""
    model = graph.upgrade(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))
    for name in ("in", "out"):
        (folder / name).mkdir()
    graph.save(model, folder / "in" / GRAPH)
    found = signature(model)
    infos = [TensorInfo(name, dtype, shape) for name, dtype, shape in found.inputs]
    rows = [{"name": i.name, "dtype": i.dtype, "shape": [*i.shape], "range": None} for i in infos]
    arguments = {name: asdict(one) for name, one in found.arguments.items()}
    params = {"inputs": rows, "axes": {}, "arguments": arguments}
    inputs = {"graph": folder / "in"}
    if feed:
        inputs["samples"] = folder / "samples"
        spool_writer.write(
            [feed], inputs["samples"], infos, limit_samples=None, memory_bytes=1 << 20,
            progress=lambda what, fraction: None,
        )  # fmt: skip
    return perform("fuse", inputs, params, folder / "out", lambda what, fraction: None)


READ = {
    "shape": "g (float[2,6] x, int64[2] a) => (float[3,4] y) { y = Reshape (x, a) }",
    "expansion": "g (float[1,6] x, int64[2] a) => (float[3,6] y) { y = Expand (x, a) }",
    "repeats": "g (float[2,6] x, int64[2] a) => (float[4,18] y) { y = Tile (x, a) }",
    "split": "g (float[6] x, int64[2] a) => (float[2] y, float[4] z) { y, z = Split (x, a) }",
    "squeezed": "g (float[2,1,3] x, int64[1] a) => (float[2,3] y) { y = Squeeze (x, a) }",
    "reduced": "g (float[2,5,3] x, int64[1] a) => (float[2,1,3] y) { y = ReduceSum (x, a) }",
    "indices": "g (float[5,3] x, int64[4] a) => (float[4,3] y) { y = Gather (x, a) }",
    "divisor": "g (int64[4] x, int64[4] a) => (int64[4] y) { y = Div (x, a) }",
    "unsigned": "g (uint16[4] x, uint32[4] a) => (uint32[4] y) { b = Cast<to = 12> (x) "
    "y = Max (a, b) }",
}


@pytest.mark.parametrize("case", READ)
def test_numbers_that_the_graph_says(tmp_path: Path, case: str) -> None:
    assert run(tmp_path, READ[case])["max_error"] == 0.0


ASKED = "g (float[1,1,4,4] x, int64[4] a) => (float[?,?,?,?] y) { y = Resize (x, , , a) }"


def test_other_numbers_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="does not run on random inputs") as caught:
        run(tmp_path, ASKED)
    assert "input 'a' is the sizes of Resize" in str(caught.value.hint)
    assert "--calibration" in str(caught.value.hint)


def test_samples_hold_them(tmp_path: Path) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    meta = run(tmp_path, ASKED, x=x, a=np.array([1, 1, 2, 2]))
    assert meta["max_error"] == 0.0


BRANCHES = """g (float[N,M] x, int64 rate) => (float[?,?] y) {
    high = Constant <value = int64 {16000}> ()
    shape = Constant <value = int64[2] {5, 5}> ()
    at = Equal (rate, high)
    y = If (at) <then_branch = a () => (float[?,?] z) { z = Relu (x) },
                 else_branch = b () => (float[?,?] v) { v = Reshape (x, shape) }>
}"""


def test_a_number_that_chooses_a_branch_is_taken_from_samples(tmp_path: Path) -> None:
    """A sampling rate: a random one is of a branch that does not take the other inputs."""
    for name in ("random", "sampled"):
        (tmp_path / name).mkdir()
    with pytest.raises(InputRefused, match="does not run on random inputs") as caught:
        run(tmp_path / "random", BRANCHES)
    assert "input 'rate' is the condition of If" in str(caught.value.hint)
    x = np.ones((3, 4), np.float32)
    meta = run(tmp_path / "sampled", BRANCHES, x=x, rate=np.array(16_000))
    assert meta["max_error"] == 0.0
