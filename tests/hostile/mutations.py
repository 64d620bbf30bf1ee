"""Random changes of sound graphs and artifacts; the same seed makes the same change anywhere."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from optkit.ground.store import digest_json

_EXTREME = (0, -1, 1, 2, 3, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 33, 1 << 62, -(1 << 62))
_OPERATORS = (
    "Add", "MatMul", "Conv", "Reshape", "Transpose", "Concat", "Gather", "Slice", "Expand", "Tile",
    "Range", "Softmax", "Resize", "Pad", "Split", "Unsqueeze", "ReduceMean", "LSTM", "Loop",
    "Einsum", "QuantizeLinear", "DequantizeLinear", "TopK", "NonZero", "OneHot", "StringConcat",
    "Nothing",
)  # fmt: skip


def sound() -> ModelProto:
    """A small network with a convolution, shapes that are computed, attention and Q/DQ."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    def numbers(name: str, *values: int) -> TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("QuantizeLinear", ["r", "s", "z"], ["q"], "quantize"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        node("Shape", ["d"], ["shape"], "shape", end=1),
        node("Concat", ["shape", "rest"], ["wanted"], "concat", axis=0),
        node("Reshape", ["d", "wanted"], ["rows"], "reshape"),
        node("MatMul", ["rows", "w"], ["keys"], "keys"),
        node("Transpose", ["keys"], ["turned"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["keys", "turned"], ["scores"], "scores"),
        node("Softmax", ["scores"], ["shares"], "softmax", axis=-1),
        node("MatMul", ["shares", "keys"], ["mixed"], "mix"),
        node("ReduceMean", ["mixed", "axes"], ["y"], "mean", keepdims=0),
    ]
    constants = [
        weight("k", 4, 3, 3, 3), weight("b", 4), weight("w", 4, 8),
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.array(0, np.uint8), "z"),
        numbers("rest", -1, 4), numbers("axes", 1),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _dims(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(list(model.graph.initializer))
    if tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_EXTREME)
    else:
        tensor.dims.append(rng.choice(_EXTREME))


def _declared(model: ModelProto, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    dims = value.type.tensor_type.shape.dim
    rng.choice(list(dims)).dim_value = rng.choice(_EXTREME)


def _numbers(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type == TensorProto.INT64])
    values = numpy_helper.to_array(tensor).copy()
    values[rng.randrange(len(values))] = rng.choice(_EXTREME)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _not_finite(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT])
    values = numpy_helper.to_array(tensor).copy()
    values.flat[rng.randrange(values.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e38, 1e-45])
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _attribute(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.attribute])
    attribute = rng.choice(list(node.attribute))
    if attribute.type == AttributeProto.INTS:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_EXTREME)
    else:
        attribute.i = rng.choice(_EXTREME)


def _operator(model: ModelProto, rng: random.Random) -> None:
    rng.choice(list(model.graph.node)).op_type = rng.choice(_OPERATORS)


def _domain(model: ModelProto, rng: random.Random) -> None:
    rng.choice(list(model.graph.node)).domain = rng.choice(["com.microsoft", "other", "ai.onnx.ml"])


def _inputs(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice(list(model.graph.node))
    values = list(node.input)
    rng.choice([rng.shuffle, lambda v: v.pop(), lambda v: v.append(v[0])])(values)
    del node.input[:]
    node.input.extend(values)


def _dropped(model: ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def _type(model: ModelProto, rng: random.Random) -> None:
    rng.choice(list(model.graph.initializer)).data_type = rng.randrange(0, 30)


def _opset(model: ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice([0, 1, 7, 13, 22, 30, 1 << 40])


_CHANGES: Sequence[Callable[[ModelProto, random.Random], None]] = (
    _dims, _declared, _numbers, _not_finite, _attribute, _operator, _domain, _inputs, _dropped,
    _type, _opset,
)  # fmt: skip


def graph(seed: int, folder: Path) -> Path:
    """A changed graph: one to three changes of its content, or of its bytes."""
    rng, model = random.Random(seed), sound()
    if seed % 6 == 5:
        data = bytearray(model.SerializeToString())
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        for change in rng.choices(_CHANGES, k=rng.randint(1, 3)):
            with suppress(ValueError, IndexError, TypeError):  # after another change
                change(model, rng)
        data = bytearray(model.SerializeToString())
    (folder / "model.onnx").write_bytes(data)
    return folder / "model.onnx"


def _cut(file: Path, rng: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) or 1)])


def _flipped(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes() or b"x")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def _folder(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()
    if rng.random() < 0.5:
        (file / "x").touch()


def _link(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.symlink_to(rng.choice(["/etc/passwd", "/dev/zero", "nowhere", "."]))


def _gone(file: Path, rng: random.Random) -> None:
    file.unlink()


def _added(file: Path, rng: random.Random) -> None:
    name = rng.choice(["extra", "m\udcff", "a\nb", ".git", "model.sig"])
    place = file.parent / name
    place.mkdir() if rng.random() < 0.5 else place.touch()


_OF_FILES: Sequence[Callable[[Path, random.Random], None]] = (
    _cut, _flipped, _folder, _link, _gone, _added,
)  # fmt: skip


def artifact(seed: int, whole: Path, folder: Path) -> Path:
    """A changed copy of an artifact in `folder`: a file, or what the manifest says, with a new
    checksum."""
    rng, path = random.Random(seed), folder / whole.name
    shutil.copytree(whole, path)
    if seed % 2:
        _forged(path / "manifest.json", rng)
        return path
    files = sorted(file for file in path.rglob("*") if file.is_file())
    chosen = path / "manifest.json" if seed % 8 == 0 else rng.choice(files)
    rng.choice(_OF_FILES)(chosen, rng)
    return path


_VALUES: Sequence[Any] = (
    None, True, 0, -1, 1 << 70, 1e308, "", "x" * 300, "m\udcff", "\x1b[2J", [], {}, [[]],
    {"a": {"b": None}}, "<script>alert(1)</script>",
)  # fmt: skip


def _forged(file: Path, rng: random.Random) -> None:
    body = json.loads(file.read_text())
    body.pop("check")
    place: Any = body
    for _ in range(rng.randint(0, 4)):
        inner = [value for value in _children(place) if isinstance(value, dict | list) and value]
        if not inner:
            break
        place = rng.choice(inner)
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    place[key] = rng.choice(_VALUES)
    try:
        body["check"] = digest_json(body)
    except Exception:  # no canonical JSON: the old checksum, which is wrong
        body["check"] = "0" * 64
    file.write_text(json.dumps(body))


def _children(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)
