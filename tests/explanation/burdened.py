"""Networks that each carry one burden: something that costs more than all the rest, with what a
recipe needs beside it. No training, no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from optkit.ground.recipe import Recipe

Burden = Callable[[Path], Recipe]

_NORMAL = """\
import numpy as np

def samples(count=128, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 8):
        yield {{"x": rng.normal(0, 1, (8, *{shape})).astype(np.float32)}}
"""


_PICTURES = """\
import numpy as np

def pictures(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 8):
        coarse = rng.uniform(0, 255, (8, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
        yield np.clip(coarse + rng.normal(0, 12, (8, 3, 32, 32)), 0, 255).astype(np.float32)
"""


class Net:
    """A graph under construction. The last dimension of `shape` is the width of `product`."""

    def __init__(self, shape: tuple[Any, ...], dtype: int = TensorProto.FLOAT) -> None:
        self.shape = shape
        self.inputs = [helper.make_tensor_value_info("x", dtype, shape)]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    def node(
        self, op: str, *inputs: str, module: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        name = f"{module + '/' if module else ''}{op}_{len(self.nodes)}"
        results = [f"{name}.out{i or ''}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), results, name, **attributes))
        return results[0]

    def constant(self, numbers: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(numbers, dtype)
        return name

    def product(
        self, x: str, inputs: int, outputs: int, module: str, seed: int | None = None
    ) -> str:
        rng = self.rng if seed is None else np.random.default_rng(seed)
        weight = rng.standard_normal((inputs, outputs)) / inputs**0.5
        y = self.node("MatMul", x, self.constant(weight), module=module)
        return self.node("Add", y, self.constant(rng.normal(0, 0.1, outputs)), module=module)

    def conv(
        self, x: str, inputs: int, outputs: int, module: str, *, kernel: int = 3, **attributes: Any
    ) -> str:
        group = attributes.get("group", 1)
        weight = self.rng.standard_normal((outputs, inputs // group, kernel, kernel))
        weight /= (inputs // group * kernel**2) ** 0.5
        bias = self.constant(self.rng.normal(0, 0.1, outputs))
        attributes.setdefault("pads", [kernel // 2] * 4)
        return self.node("Conv", x, self.constant(weight), bias, module=module, **attributes)

    def save(
        self,
        folder: Path,
        result: str,
        shape: tuple[Any, ...],
        *,
        source: str | None = None,
        **recipe: Any,
    ) -> Recipe:
        for node in self.nodes:
            for index, output in enumerate(node.output):
                if output == result:
                    node.output[index] = "y"
            for index, name in enumerate(node.input):
                if name == result:
                    node.input[index] = "y"
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        made = helper.make_graph(
            self.nodes, "net", self.inputs, [output],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21)]
        model = helper.make_model(made, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        fixed = tuple(d for d in self.shape[1:])
        (folder / "source.py").write_text(source or _NORMAL.format(shape=fixed))
        batch = recipe.pop("batch", 8)
        data = {
            "name": "net", "model": {"path": "model.onnx"},
            "axes": {"batch": {"min": 1, "opt": batch, "max": max(8, 2 * batch)}},
            "calibration": {"source": "source.py", "samples": 128},
            "bench": {"batches": [batch], "seconds": 0.05, "warmup_seconds": 0.02},
        } | recipe  # fmt: skip
        return Recipe.from_dict(data, folder)


def mlp(net: Net, x: str, width: int, depth: int = 2, first: str = "layers") -> str:
    for number in range(depth):
        x = net.node(
            "Relu", net.product(x, width, width, f"{first}.{number}"), module=f"{first}.{number}"
        )
    return x


# of the facts


def other_normalization(folder: Path, *, same: bool = False) -> Recipe:
    """Calibrated on pictures divided by 255, evaluated on those of mean 0 and deviation 1; `same`:
    calibrated on such pictures too."""
    net = Net(("batch", 3, 32, 32))
    x = net.node("Relu", net.conv("x", 3, 32, "stem"), module="stem")
    x = net.node("Relu", net.conv(x, 32, 32, "body"), module="body")
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    x = net.product(x, 32, 10, "head")
    prepared = "((x / 255 - 0.45) / 0.225).astype(np.float32)"
    source = (
        _PICTURES
        + f"""
def samples(count=128):
    for x in pictures(count, 1):
        yield {{"x": {prepared if same else "x / 255"}}}
"""
    )
    task = (
        _PICTURES
        + f"""
METRIC = "top1"

def samples(count=64):
    for x in pictures(count, 2):
        yield {{"x": {prepared}}}, x.mean((2, 3)).argmax(1)

def score(outputs, labels):
    return (outputs["y"].argmax(1) % 3 == labels).astype(float)
"""
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.py").write_text(task)
    return net.save(folder, x, ("batch", 10), source=source, eval={"task": "task.py"})


def transposes(folder: Path) -> Recipe:
    """A product over channels last between convolutions, which have them first."""
    net = Net(("batch", 32, 64, 64))
    x = net.conv("x", 32, 32, "stem", kernel=1, group=32)
    for number in range(3):
        module = f"blocks.{number}"
        x = net.node("Transpose", x, perm=[0, 2, 3, 1], module=module)
        x = net.node("Add", x, net.constant(net.rng.normal(0, 1, 32)), module=module)
        x = net.node(
            "MatMul", x, net.constant(net.rng.standard_normal((32, 32)) / 6), module=module
        )
        x = net.node("Transpose", x, perm=[0, 3, 1, 2], module=module)
        x = net.conv(x, 32, 32, module, kernel=1, group=32)
    return net.save(folder, x, ("batch", 32, 64, 64))


def top_k(folder: Path) -> Recipe:
    """60,000 scores, of which all are ordered."""
    net = Net(("batch", 64))
    x = mlp(net, "x", 64)
    x = net.product(x, 64, 60000, "scores")
    k = net.constant([30000], np.int64)
    x = net.node("TopK", x, k, axis=-1, outputs=2, module="best")
    return net.save(folder, x, ("batch", 30000))


def gelu(folder: Path, form: str = "exp") -> Recipe:
    net = Net(("batch", 64, 128))
    x = "x"
    for number in range(2):
        x = activation(net, net.product(x, 128, 128, f"layers.{number}"), form, f"layers.{number}")
    return net.save(folder, x, ("batch", 64, 128))


def activation(net: Net, x: str, form: str, module: str) -> str:
    def c(number: float) -> str:
        return net.constant(number)

    def op(name: str, *inputs: str) -> str:
        return net.node(name, *inputs, module=module)

    if form == "exp":  # x / (1 + exp(−1.702 x))
        return op("Div", x, op("Add", c(1.0), op("Exp", op("Mul", x, c(-1.702)))))
    if form == "tanh of exp":
        cube = op("Mul", op("Mul", x, x), x)
        u = op("Mul", op("Add", x, op("Mul", cube, c(0.044715))), c((2 / np.pi) ** 0.5))
        a, b = op("Exp", u), op("Exp", op("Neg", u))
        return op(
            "Mul",
            op("Mul", x, c(0.5)),
            op("Add", op("Div", op("Sub", a, b), op("Add", a, b)), c(1.0)),
        )
    raise AssertionError(form)


def twice(folder: Path) -> Recipe:
    """Two branches with equal weights."""
    net = Net(("batch", 256))
    ends = []
    for name in ("left", "right"):
        x = "x"
        for number in range(2):
            x = net.product(x, 256, 256, f"{name}.{number}", seed=number)
            x = net.node("Relu", x, module=f"{name}.{number}")
        ends.append(x)
    x = net.node("Concat", *ends, axis=-1)
    return net.save(folder, net.product(x, 512, 64, "head"), ("batch", 64), batch=64)


TEXT = """\
import numpy as np

def samples(count=128, seed=1, *, length=512):
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 8):
        ids = np.zeros((8, length), np.int64)
        mask = np.zeros((8, length), np.int64)
        for row in range(8):
            real = rng.integers(16, 25)
            ids[row, :real] = rng.zipf(1.3, real).clip(1, 999)
            mask[row, :real] = 1
        yield {"input_ids": ids, "attention_mask": mask}
"""


def padding(folder: Path, *, masked: bool = True, free: bool = True) -> Recipe:
    """492 of 512 tokens."""
    length = "sequence" if free else 512
    net = Net(("batch", length), TensorProto.INT64)
    net.inputs[0].name = "input_ids"
    x = net.node("Gather", net.constant(net.rng.standard_normal((1000, 64))), "input_ids")
    q, k, v = (net.product(x, 64, 64, f"attention.{n}") for n in "qkv")
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]), module="attention")
    if masked:
        net.inputs.append(
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ("batch", length))
        )
        mask = net.node("Cast", "attention_mask", to=TensorProto.FLOAT)
        mask = net.node("Mul", net.node("Sub", mask, net.constant(1.0)), net.constant(1e4))
        scores = net.node("Add", scores, net.node("Unsqueeze", mask, net.constant([1], np.int64)))
    x = net.node("MatMul", net.node("Softmax", scores, axis=-1), v, module="attention")
    x = mlp(net, x, 64)
    x = net.node("Gather", x, net.constant(0, np.int64), axis=1)
    x = net.product(x, 64, 4, "head")
    source = TEXT if masked else TEXT.replace(', "attention_mask": mask', "")
    axes = {"batch": {"min": 1, "opt": 2, "max": 8}}
    if free:
        axes["sequence"] = {"min": 1, "opt": 512, "max": 512}
    return net.save(folder, x, ("batch", 4), source=source, axes=axes)


def small_batch(folder: Path, batch: int = 1) -> Recipe:
    net = Net(("batch", 64))
    x = "x"
    for number in range(24):
        x = net.node("Tanh", net.product(x, 64, 64, f"layers.{number}"), module=f"layers.{number}")
    return net.save(folder, x, ("batch", 64), batch=batch)


# new ones


def island(folder: Path) -> Recipe:
    """A convolution that the recipe keeps in floats, between two in INT8."""
    net = Net(("batch", 64, 32, 32))
    x = "x"
    for number in range(4):
        x = net.node("Relu", net.conv(x, 64, 64, f"body.{number}"), module=f"body.{number}")
    quantization = {"nodes": {"body.1/*": "fp32"}}
    return net.save(folder, x, ("batch", 64, 32, 32), quantization=quantization)


def resize(folder: Path) -> Recipe:
    """Linear, on a map that is eight times as large."""
    net = Net(("batch", 16, 32, 32))
    x = net.conv("x", 16, 32, "stem")
    scales = net.constant([1, 1, 8, 8])
    x = net.node("Resize", x, "", scales, mode="linear", module="up")
    x = net.node("GlobalAveragePool", x, module="pool")
    return net.save(folder, net.conv(x, 32, 4, "head", kernel=1), ("batch", 4, 1, 1))


def non_zero(folder: Path) -> Recipe:
    """Positive numbers are looked for and gathered."""
    net = Net(("batch", 128))
    x = net.product("x", 128, 4096, "wide")
    places = net.node("NonZero", net.node("Relu", x), module="sparse")
    found = net.node("GatherND", x, net.node("Transpose", places, perm=[1, 0]), module="sparse")
    total = net.node("ReduceSum", found, net.constant([0], np.int64), module="sparse")
    x = net.node("Add", mlp(net, "x", 128, 1), total)
    return net.save(folder, net.product(x, 128, 8, "head"), ("batch", 8), batch=64)


def gru(folder: Path) -> Recipe:
    net = Net(("batch", 128, 32))
    x = net.node("Transpose", "x", perm=[1, 0, 2])
    w = net.constant(net.rng.standard_normal((1, 192, 32)) / 6)
    r = net.constant(net.rng.standard_normal((1, 192, 64)) / 8)
    x = net.node("GRU", x, w, r, hidden_size=64, module="cell")
    x = net.node(
        "Gather", net.node("Squeeze", x, net.constant([1], np.int64)), net.constant(-1, np.int64)
    )
    return net.save(folder, net.product(x, 64, 8, "head"), ("batch", 8))


def loop(folder: Path) -> Recipe:
    """One small product for each of 200 steps."""
    net = Net(("batch", 32))
    weight = numpy_helper.from_array(
        (net.rng.standard_normal((32, 32)) / 6).astype(np.float32), "w"
    )
    body = helper.make_graph(
        [helper.make_node("MatMul", ["state", "w"], ["next_product"], "step_MatMul"),
         helper.make_node("Tanh", ["next_product"], ["next"], "step_Tanh"),
         helper.make_node("Identity", ["going"], ["still"], "step_going")],
        "body",
        [helper.make_tensor_value_info("number", TensorProto.INT64, []),
         helper.make_tensor_value_info("going", TensorProto.BOOL, []),
         helper.make_tensor_value_info("state", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []),
         helper.make_tensor_value_info("next", TensorProto.FLOAT, ["batch", 32])],
        [weight],
    )  # fmt: skip
    x = mlp(net, "x", 32, 1)
    x = net.node(
        "Loop", net.constant(200, np.int64), net.constant(True, bool), x, body=body, module="steps"
    )
    return net.save(folder, net.product(x, 32, 8, "head"), ("batch", 8))


def vocabulary(folder: Path) -> Recipe:
    net = Net(("batch", 64))
    x = net.node("MatMul", "x", net.constant(net.rng.standard_normal((64, 50000))), module="head")
    for _ in range(2):
        x = net.node("Softmax", x, axis=-1, module="head")
    return net.save(folder, x, ("batch", 50000))


def positions(folder: Path) -> Recipe:
    """Sines of all positions, computed in every call from the length of the input."""
    net = Net(("batch", "sequence", 32))
    length = net.node("Shape", "x", start=1, end=2)
    steps = net.node(
        "Range", net.constant(0, np.int64), net.node("Squeeze", length), net.constant(1, np.int64)
    )
    steps = net.node(
        "Unsqueeze", net.node("Cast", steps, to=TensorProto.FLOAT), net.constant([1], np.int64)
    )
    angles = net.node(
        "Mul", steps, net.constant(np.geomspace(1, 1e-4, 2048)[None]), module="positions"
    )
    waves = net.node("Sin", angles, module="positions")
    waves = net.node("ReduceMean", net.node("Reshape", waves, net.constant([-1, 32, 64], np.int64)),
                     net.constant([2], np.int64), keepdims=0, module="positions")  # fmt: skip
    x = net.node("Add", "x", waves, module="positions")
    source = _NORMAL.format(shape=(256, 32))
    axes = {"batch": {"min": 1, "opt": 1, "max": 8}, "sequence": {"min": 1, "opt": 256, "max": 256}}
    return net.save(folder, mlp(net, x, 32, 1), ("batch", "sequence", 32), source=source, axes=axes)


def strided(folder: Path) -> Recipe:
    """A mean over the first axis behind the batch, whose numbers lie apart."""
    net = Net(("batch", 512, 16, 16))
    x = net.node("CumSum", "x", net.constant(1, np.int64), module="running")
    x = net.node("ReduceMean", x, net.constant([2, 3], np.int64), keepdims=0, module="mean")
    return net.save(folder, net.product(x, 512, 64, "head"), ("batch", 64))


def own_norm(folder: Path) -> Recipe:
    """A normalization with ε outside of the root, which no operator computes."""
    net = Net(("batch", 64, 256))
    x = "x"
    for number in range(2):
        module, last = f"norm.{number}", net.constant([-1], np.int64)

        def op(name: str, *inputs: str, module: str = module) -> str:
            return net.node(name, *inputs, module=module)

        centred = op("Sub", x, op("ReduceMean", x, last))
        root = op("Sqrt", op("ReduceMean", op("Mul", centred, centred), last))
        x = op("Div", centred, op("Add", root, net.constant(1e-3)))
        x = op("Mul", x, net.constant(net.rng.uniform(0.5, 2, 256)))
        x = op("Add", x, net.constant(net.rng.normal(0, 0.1, 256)))
        x = net.product(x, 256, 256 if number == 0 else 16, f"layers.{number}")
    return net.save(folder, x, ("batch", 64, 16))


def dense_concat(folder: Path) -> Recipe:
    """Maps joined again and again, as a dense block does."""
    net = Net(("batch", 16, 64, 64))
    x = "x"
    for number in range(4):
        new = net.conv(x, 16 * (number + 1), 16, f"dense.{number}", kernel=1, group=16)
        x = net.node("Concat", x, new, axis=1, module=f"dense.{number}")
    return net.save(folder, x, ("batch", 80, 64, 64))


def shuffled_channels(folder: Path) -> Recipe:
    net = Net(("batch", 64, 56, 56))
    x = "x"
    for number in range(3):
        module = f"blocks.{number}"
        x = net.conv(x, 64, 64, module, kernel=1, group=64)
        x = net.node("Reshape", x, net.constant([0, 4, 16, 56, 56], np.int64), module=module)
        x = net.node("Transpose", x, perm=[0, 2, 1, 3, 4], module=module)
        x = net.node("Reshape", x, net.constant([0, 64, 56, 56], np.int64), module=module)
    return net.save(folder, x, ("batch", 64, 56, 56))


def whole_numbers(folder: Path) -> Recipe:
    """Hashes of 64 bits of every number."""
    net = Net(("batch", 256, 64))
    x = net.node(
        "Cast", net.node("Mul", "x", net.constant(1000.0)), to=TensorProto.INT64, module="hash"
    )
    for _ in range(4):
        x = net.node("Mul", x, net.constant(48271, np.int64), module="hash")
        x = net.node("Mod", x, net.constant(2147483647, np.int64), module="hash")
    x = net.node(
        "Cast", net.node("Mod", x, net.constant(100, np.int64), module="hash"), to=TensorProto.FLOAT
    )
    x = net.node("Add", net.node("Mul", x, net.constant(0.01)), "x")
    return net.save(folder, net.product(x, 64, 16, "head"), ("batch", 256, 16))
