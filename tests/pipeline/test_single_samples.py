"""Models whose samples cannot be joined along axis 0 are built for one sample at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import optkit
from optkit import Request
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import TensorInfo
from optkit.ground.devices import target
from optkit.ground.recipe import Recipe
from optkit.road.pipeline import Job
from optkit.road.pipeline.single_samples import single_sample

DETECTOR = (
    TensorInfo("x", "float32", ("batch", "t")),
    TensorInfo("state", "float32", (2, "batch", 3)),
    TensorInfo("rate", "int64", ()),
)
RECORDING = (TensorInfo("x", "float32", ("frames", 8)), TensorInfo("h", "float32", (1, 1, 3)))


def job(folder: Path, arrays: dict[str, np.ndarray] | None, **others: Any) -> Job:
    (folder / "net.onnx").touch()
    data: dict[str, Any] = {"name": "net", **others}
    if arrays is not None:
        np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
        data["calibration"] = {"source": "arrays", "args": {"path": "data.npz"}}
    recipe = Recipe.from_dict(data, base=folder, model=str(folder / "net.onnx"))
    return Job(recipe, target("l4"), PRECISIONS["int8"])


def decided(asked: Job, inputs: tuple[TensorInfo, ...]) -> tuple[dict[str, Any] | None, list[str]]:
    told: list[str] = []
    recipe = single_sample(asked, inputs, SimpleNamespace(note=told.append))  # type: ignore[arg-type]
    return recipe and {name: part.shape for name, part in recipe.inputs.items()}, told


@pytest.mark.parametrize("rows", [(9, 4), (9, 1, 4)])
def test_a_state_with_the_batch_on_axis_1(tmp_path: Path, rows: tuple[int, ...]) -> None:
    arrays = {"x": np.zeros(rows, "f"), "state": np.zeros((9, 2, 1, 3), "f"),
              "rate": np.array(16_000)}  # fmt: skip
    shapes, told = decided(job(tmp_path, arrays), DETECTOR)
    assert shapes == {"x": (1, "t"), "state": (2, 1, 3), "rate": ()}
    reason = "because axis 0 of input 'state' is not the batch"
    assert told == [f"built for one sample at a time, {reason}: x [1, t], state [2, 1, 3], rate []"]


def test_a_recording_without_a_batch_has_the_length_of_the_rows(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((9, 62, 8), "f"), "h": np.zeros((9, 1, 1, 3), "f")}
    assert decided(job(tmp_path, arrays), RECORDING)[0] == {"x": (62, 8), "h": (1, 1, 3)}


def test_shapes_may_give_the_one_size_of_the_batch(tmp_path: Path) -> None:
    """--shapes x:1x4,state:2x1x3"""
    arrays = {"x": np.zeros((9, 4), "f"), "state": np.zeros((9, 2, 1, 3), "f"),
              "rate": np.array(16_000)}  # fmt: skip
    asked = job(tmp_path, arrays, axes={"batch": 1, "t": 4})
    assert decided(asked, DETECTOR)[0] == {"x": (1, "t"), "state": (2, 1, 3), "rate": ()}
    found = single_sample(asked, DETECTOR, SimpleNamespace(note=lambda text: None))  # type: ignore[arg-type]
    assert found is not None and list(found.axes) == ["t"]


def test_what_is_built_as_before(tmp_path: Path) -> None:
    """A model that takes batches; no samples; sizes of the batch that the recipe gives."""
    state = {"x": np.zeros((9, 1, 4), "f"), "state": np.zeros((9, 2, 1, 3), "f"),
             "rate": np.zeros(9, "q")}  # fmt: skip
    plain = (TensorInfo("x", "float32", ("batch", 4)), TensorInfo("rate", "int64", ()))
    given = {"batch": {"min": 1, "opt": 2, "max": 4}, "t": 4}
    assert decided(job(tmp_path, state), plain) == (None, [])
    assert decided(job(tmp_path, None), DETECTOR) == (None, [])
    assert decided(job(tmp_path, state, axes=given), DETECTOR) == (None, [])


def test_one_command_and_its_data_quantize_a_model_with_a_state(tmp_path: Path) -> None:
    """state' = relu(x · w + state[0]); the samples are stacked whole."""
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["xw"], "product"),
         helper.make_node("Gather", ["state", "first"], ["s"], axis=0),
         helper.make_node("Add", ["xw", "s"], ["sum"]),
         helper.make_node("Relu", ["sum"], ["y"]),
         helper.make_node("MatMul", ["y", "v"], ["z"], "head")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16]),
         helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 32])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(rng.normal(size=(16, 32)).astype("f"), "w"),
         numpy_helper.from_array(rng.normal(size=(32, 8)).astype("f"), "v"),
         numpy_helper.from_array(np.array(1), "first")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
              tmp_path / "net.onnx")  # fmt: skip
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(16, 1, 16)).astype("f"),
             state=rng.normal(size=(16, 2, 1, 32)).astype("f"))  # fmt: skip
    request = Request(str(tmp_path / "net.onnx"), calibration=str(tmp_path / "data.npz"))
    out = optkit.quantize(request, target="cpu", precision="int8", out=tmp_path / "out")
    written = onnx.load(next(out.glob("*.onnx")))
    shapes = {info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
              for info in written.graph.input}  # fmt: skip
    assert shapes == {"x": [1, 16], "state": [2, 1, 32]}
    assert any(node.op_type == "QuantizeLinear" for node in written.graph.node)
