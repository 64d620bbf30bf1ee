"""Small networks, with what a recipe needs beside them: no training, no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from optkit.ground.recipe import Recipe

_SOURCE = """\
import numpy as np

def samples(count=256, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 32):
        yield {{"x": rng.uniform(-1, 1, (32, *{shape})).astype(np.float32)}}
"""


def residual(folder: Path, channels: int = 32, *, largest: float = 1.0) -> Recipe:
    """x [batch, 8, 32, 32] → stem → two residual blocks, the second at half the size → pool → y
    [batch, 16], nodes named as a PyTorch export names them. `largest`: factor of one channel of
    `blocks.0.conv2`."""
    net = _Net(("batch", 8, 32, 32), 16)
    x = net.conv("stem", "x", 8, channels)
    x = net.node("Relu", "stem", [x])
    for block in ("blocks.0", "blocks.1"):
        if block == "blocks.1":
            x = net.node("MaxPool", "down", [x], kernel_shape=[2, 2], strides=[2, 2])
        inner = net.node("Relu", block, [net.conv(f"{block}.conv1", x, channels, channels)])
        inner = net.conv(f"{block}.conv2", inner, channels, channels)
        x = net.node("Relu", f"{block}.out", [net.node("Add", block, [inner, x])])
    net.weights["blocks.0.conv2.weight"][0] *= largest
    x = net.node("GlobalAveragePool", "pool", [x])
    x = net.node("Flatten", "flat", [x])
    return net.save(folder, net.gemm("head", x, channels, 16), (8, 32, 32))


def stack(folder: Path, width: int = 256, depth: int = 4, rows: int = 64) -> Recipe:
    """x [batch, width] → `depth` times Gemm and Relu → Gemm → y [batch, width]."""
    net = _Net(("batch", width), width)
    x = "x"
    for number in range(depth):
        x = net.node("Relu", f"layers.{number}", [net.gemm(f"layers.{number}", x, width, width)])
    net.weights["layers.1.weight"][:, :2] *= 16  # a few large channels, as trained networks have
    return net.save(folder, net.gemm("head", x, width, width), (width,), rows)


def classifier(folder: Path, width: int = 64, rows: int = 16) -> Recipe:
    """`stack` with a Softmax behind it: y [batch, width]."""
    net = _Net(("batch", width), width)
    x = net.node("Relu", "first", [net.gemm("first", "x", width, width)])
    x = net.node("Softmax", "soft", [net.gemm("head", x, width, width)])
    return net.save(folder, x, (width,), rows)


def uneven(folder: Path) -> Recipe:
    """x [batch, 8, 16, 16] → a convolution with channels of very different sizes → factors that
    even them out → a convolution → pool → y [batch, 16]."""
    net = _Net(("batch", 8, 16, 16), 16)
    sizes = np.geomspace(1, 300, 32).astype(np.float32)
    x = net.conv("first", "x", 8, 32)
    net.weights["first.weight"] *= sizes[:, None, None, None]
    net.weights["first.bias"] *= sizes
    net.weights["even.factors"] = 1 / sizes[:, None, None]
    x = net.node("Mul", "even", [net.node("Relu", "first", [x]), "even.factors"])
    x = net.conv("second", x, 32, 32)
    x = net.node("Flatten", "flat", [net.node("GlobalAveragePool", "pool", [x])])
    return net.save(folder, net.gemm("head", x, 32, 16), (8, 16, 16))


OUTLIER = """\
import numpy as np

def samples(count=256, seed=1):
    rng = np.random.default_rng(seed)
    for start in range(0, count, 32):
        x = rng.uniform(-1, 1, (32, *{shape})).astype(np.float32)
        if start == 32:
            x[5].flat[0] = 100.0
        yield {{"x": x}}
"""
"""One number of the calibration data, none of those that are compared, is a hundred times what all
others are."""


class _Net:
    def __init__(self, shape: tuple[Any, ...], outputs: int) -> None:
        self.shape, self.outputs = shape, outputs
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    def conv(self, module: str, x: str, inputs: int, outputs: int) -> str:
        kernel = self._weight(module, (outputs, inputs, 3, 3), inputs * 9)
        self.weights[f"{module}.bias"] = self.rng.normal(0, 0.1, outputs).astype(np.float32)
        return self.node("Conv", module, [x, kernel, f"{module}.bias"], pads=[1, 1, 1, 1])

    def gemm(self, module: str, x: str, inputs: int, outputs: int) -> str:
        weight = self._weight(module, (inputs, outputs), inputs)
        self.weights[f"{module}.bias"] = self.rng.normal(0, 0.1, outputs).astype(np.float32)
        return self.node("Gemm", module, [x, weight, f"{module}.bias"])

    def node(self, op: str, module: str, inputs: list[str], **attributes: Any) -> str:
        result = f"{module}.{op.lower()}"
        self.nodes.append(helper.make_node(op, inputs, [result], f"{module}/{op}", **attributes))
        return result

    def save(self, folder: Path, output: str, shape: tuple[int, ...], rows: int = 8) -> Recipe:
        self.nodes[-1].output[0] = "y"
        made = helper.make_graph(
            self.nodes, "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", self.outputs])],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21)]
        model = helper.make_model(made, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        (folder / "source.py").write_text(_SOURCE.format(shape=shape))
        data = {
            "name": "net",
            "model": {"path": "model.onnx"},
            "axes": {"batch": {"min": 1, "opt": rows, "max": 2 * rows}},
            "calibration": {"source": "source.py", "samples": 256},
            "bench": {"batches": [rows], "seconds": 0.05, "warmup_seconds": 0.02},
        }
        return Recipe.from_dict(data, folder)

    def _weight(self, module: str, shape: tuple[int, ...], inputs: int) -> str:
        name = f"{module}.weight"
        self.weights[name] = (self.rng.standard_normal(shape) / inputs**0.5).astype(np.float32)
        return name
