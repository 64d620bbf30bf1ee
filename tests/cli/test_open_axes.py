"""ONNX files whose axes have no sizes and no useful names, built with nothing but samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.ground.artifact import Artifact

P2O = "p2o.DynamicDimension"
Optkit = Callable[..., Any]
BUILD = ("build", "--precision", "int8", "--set", "bench.seconds=0.05", "--target")


def picture_model(path: Path, *axes: int | str | None) -> None:
    """x [*, 3, *, *] → convolution → mean of each channel; side [*, 4] → product; their sum."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "v": (8, 4), "u": (4, 4)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "v"], ["a"], "head"),
        helper.make_node("MatMul", ["side", "u"], ["b"], "beside"),
        helper.make_node("Add", ["a", "b"], ["y"], "sum"),
    ]
    batch, height, width, other = axes
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, height, width]),
        helper.make_tensor_value_info("side", TensorProto.FLOAT, [other, 4]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["unk__7", 4])
    constants = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)
        for name, shape in weights.items()
    ]
    body = helper.make_graph(nodes, "g", inputs, [output], constants)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(body, opset_imports=opsets, ir_version=8), path)


def pictures(path: Path, height: int, width: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((16, 3, height, width)).cumsum(2).cumsum(3) / 8
    side = rng.standard_normal((16, 4))
    np.savez(path, x=x.astype(np.float32), side=side.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "axes", "told"),
    [
        ("cpu", (-1, "?", "?", -1), "x.2 12, 12, 12; x.3 16, 16, 16"),
        ("cpu", ("unk__1", "unk__2", "floor(h/2)", "unk__3"), "x.2 12, 12, 12; floor(h/2) 16"),
        ("cpu", (f"{P2O}.0", "h", "w w", f"{P2O}.1"), "h 12, 12, 12; w w 16, 16, 16"),
        ("l4", (f"{P2O}.0", "?", "floor(h/2)", -1), "x.2 12, 12, 12; floor(h/2) 16"),
    ],
)
def test_a_model_and_samples_are_enough(
    target: str, axes: tuple[int | str, ...], told: str, optkit_here: Optkit, tmp_path: Path
) -> None:
    picture_model(tmp_path / "net.onnx", *axes)
    pictures(tmp_path / "data.npz", 12, 16)
    cache = tmp_path / "cache"
    done = optkit_here(*BUILD, target, "net.onnx", "--calibration", "data.npz",
                       cwd=tmp_path, cache=cache)  # fmt: skip
    assert done.code == 0, done.err
    assert f"(smallest, most common, largest): {told}" in " ".join(done.err.split())
    ran = Artifact.load(tmp_path / "artifacts" / f"net-{target}-int8")
    for count in (1, 5):  # side has the same batch
        feed = {"x": np.zeros((count, 3, 12, 16), np.float32),
                "side": np.zeros((count, 4), np.float32)}  # fmt: skip
        assert ran.run(feed)["y"].shape == (count, 4)


@pytest.mark.slow
def test_a_recipe_of_init_builds(optkit_here: Optkit, tmp_path: Path) -> None:
    picture_model(tmp_path / "net.onnx", -1, "?", "floor(height/2)", "unk__3")
    pictures(tmp_path / "data.npz", 12, 16)
    cache = tmp_path / "cache"
    done = optkit_here("init", "net.onnx", "--calibration", "data.npz", cwd=tmp_path, cache=cache)
    assert done.code == 0, done.err
    text = (tmp_path / "optkit.yaml").read_text()
    assert "x: {dtype: float32, shape: [batch, 3, x_2, floor_height_2]}" in text
    assert "side: {dtype: float32, shape: [batch, 4]}" in text
    built = optkit_here(*BUILD, "cpu", cwd=tmp_path, cache=cache)
    assert built.code == 0, built.err
    assert "x_2 12, 12, 12; floor_height_2 16, 16, 16" in " ".join(built.err.split())
