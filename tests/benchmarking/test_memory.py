"""The memory of a run: that of the graph, whatever the process used before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH

MIB = 1 << 20
# weights of 64 MiB: malloc never puts so much into memory that was freed before (mallopt(3))
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,4096] x) => (float[N,4096] y) { y = MatMul (x, w) }"""


def quiet(what: str, done: float) -> None:
    pass


@pytest.mark.parametrize("used_before", [0, 400 * MIB])
def test_the_peak_is_that_of_the_graph(tmp_path: Path, used_before: int) -> None:
    model = ir.from_onnx_text(MODEL)
    weight = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)
    values = {value.name: value for node in model.graph for value in node.inputs if value}
    values["w"].const_value = ir.tensor(weight, name="w")
    model.graph.register_initializer(values["w"])
    inputs = {name: tmp_path / name for name in ("graph", "samples")}
    for path in inputs.values():
        path.mkdir()
    graph.save(model, inputs["graph"] / GRAPH)
    spool_writer.write(
        [{"x": weight[:8]}], inputs["samples"], (TensorInfo("x", "float32", ("N", 4096)),),
        limit_samples=None, memory_bytes=MIB, progress=quiet,
    )  # fmt: skip
    earlier = np.ones(used_before, np.uint8)  # resident, and given back
    del earlier
    found = perform("peak", inputs, {"batch": 8, "threads": 1, "host": {}}, tmp_path, quiet)
    # the runtime holds up to three copies of the weights while it packs them for this CPU
    assert weight.nbytes <= found["bytes"] < 4 * weight.nbytes
