"""Hostile ONNX files. Every builder gets an empty folder and returns the model's path in it.

A secret stands outside that folder: nothing made from the model may ever hold CANARY.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, TypeProto, helper

CANARY = b"CANARY:5f1d0c9e:"  # 16 bytes: four float32
Build = Callable[[Path], Path]


def plain_model(**graph: Any) -> ModelProto:
    """y = x + w; `graph` gives further arguments of helper.make_graph."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y], initializer=[weight], **graph),
        opset_imports=[helper.make_opsetid("", 21)],
    )


def save(model: ModelProto, folder: Path) -> Path:
    """Written without onnx.save, which would itself refuse most of these."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external_model(
    folder: Path, location: str, dims: tuple[int, ...] = (4,), **entries: str
) -> Path:
    """A model whose `w` stands in `location`. `entries`: further external_data keys."""
    model = plain_model()
    weight = model.graph.initializer[0]
    weight.ClearField("float_data")
    del weight.dims[:]
    weight.dims.extend(dims)
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "16", **entries}.items():
        weight.external_data.add(key=key, value=value)
    return save(model, folder)


def secret(folder: Path) -> Path:
    path = folder.parent / "secret.bin"
    path.write_bytes(CANARY)
    return path


def _beside(folder: Path) -> Path:
    path = folder / "w.bin"
    path.write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    return path


def _located(location: str) -> Build:
    def build(folder: Path) -> Path:
        secret(folder)
        (folder / "sub").mkdir()
        return external_model(folder, location.format(secret=folder.parent / "secret.bin"))

    return build


def _symlink(folder: Path) -> Path:
    (folder / "w.bin").symlink_to(secret(folder))
    return external_model(folder, "w.bin")


def _parent_symlink(folder: Path) -> Path:
    secret(folder)
    (folder / "sub").symlink_to(folder.parent)
    return external_model(folder, "sub/secret.bin")


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return external_model(folder, "w.bin")


def _hard_link(folder: Path) -> Path:
    (folder / "w.bin").hardlink_to(secret(folder))
    return external_model(folder, "w.bin")


def _sized(dims: tuple[int, ...] = (4,), **entries: str) -> Build:
    def build(folder: Path) -> Path:
        _beside(folder)
        return external_model(folder, "w.bin", dims, **entries)

    return build


EXTERNAL_DATA: dict[str, Build] = {
    "dotdot": _located("../secret.bin"),
    "inner_dotdot": _located("sub/../../secret.bin"),
    "absolute": _located("{secret}"),
    "device": _located("/dev/zero"),
    "backslash": _located("..\\secret.bin"),
    "empty": _located(""),
    "symlink": _symlink,
    "parent_symlink": _parent_symlink,
    "fifo": _fifo,
    "nul": _located("w.bin\0../secret.bin"),
    "hard_link": _hard_link,
    "offset_past_end": _sized(offset="4096"),
    "negative_offset": _sized(offset="-16"),
    "huge_length": _sized(length=str(1 << 40)),
    "huge_dims": _sized((1 << 31, 1 << 31)),
    "unknown_key": _sized(__class__="os.system"),
}


def _folder_as_data(folder: Path) -> Path:
    (folder / "w.bin").mkdir()
    return external_model(folder, "w.bin")


def _twice(folder: Path) -> Path:
    """Some readers take the first location, some the last."""
    (folder / "v.bin").write_bytes(_beside(folder).read_bytes())
    model = ModelProto.FromString(external_model(folder, "w.bin").read_bytes())
    model.graph.initializer[0].external_data.add(key="location", value="v.bin")
    return save(model, folder)


def _split_message(folder: Path) -> Path:
    """The graph stands twice on the wire: parsers merge the two, a naive checker sees one."""
    secret(folder)
    harmless = plain_model().SerializeToString()
    return _written(folder, harmless + external_model(folder, "../secret.bin").read_bytes())


def _written(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def _in_attribute(folder: Path) -> Path:
    secret(folder)
    model = ModelProto.FromString(external_model(folder, "../secret.bin").read_bytes())
    value = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    return save(model, folder)


def _in_function(folder: Path) -> Path:
    model = ModelProto.FromString(_in_attribute(folder).read_bytes())
    body = [model.graph.node.pop(0)]
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("local", "F", [], ["w"], body, opsets))
    model.graph.node.insert(0, helper.make_node("F", [], ["w"], domain="local"))
    return save(model, folder)


def _in_subgraph(folder: Path) -> Path:
    model = ModelProto.FromString(_in_attribute(folder).read_bytes())
    constant = model.graph.node.pop(0)
    flag = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    branch = helper.make_graph([constant], "b", [], [helper.make_empty_tensor_value_info("w")])
    model.graph.node.insert(
        0, helper.make_node("If", ["c"], ["w"], then_branch=branch, else_branch=branch)
    )
    model.graph.initializer.append(flag)
    return save(model, folder)


def _sparse_external(folder: Path) -> Path:
    secret(folder)
    external = ModelProto.FromString(external_model(folder, "../secret.bin").read_bytes())
    model = plain_model()
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(external.graph.initializer[0])
    sparse.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, [4], [0, 1, 2, 3]))
    return save(model, folder)


def _sparse_attribute(folder: Path) -> Path:
    model = ModelProto.FromString(_sparse_external(folder).read_bytes())
    sparse = model.graph.sparse_initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    return save(model, folder)


def _in_training(folder: Path) -> Path:
    """A graph that only a training would run."""
    secret(folder)
    external = ModelProto.FromString(external_model(folder, "../secret.bin").read_bytes())
    model = plain_model()
    model.training_info.add().algorithm.CopyFrom(external.graph)
    return save(model, folder)


def _default_of_a_function(folder: Path) -> Path:
    """The value that an attribute of a function has where a call gives none."""
    secret(folder)
    external = ModelProto.FromString(external_model(folder, "../secret.bin").read_bytes())
    model = plain_model()
    node, opsets = helper.make_node("Relu", ["a"], ["b"]), [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], [node], opsets))
    tensor = external.graph.initializer[0]
    model.functions[0].attribute_proto.append(helper.make_attribute("w", tensor))
    return save(model, folder)


def _string_external(folder: Path) -> Path:
    secret(folder)
    model = ModelProto.FromString(external_model(folder, "../secret.bin", (0,)).read_bytes())
    model.graph.initializer[0].data_type = TensorProto.STRING
    return save(model, folder)


def _memory_address(folder: Path) -> Path:
    """ONNX Runtime reads this location as an address in its own memory."""
    target = folder / "*" / "_ORT_MEM_ADDR_" / "*"
    target.parent.mkdir(parents=True)
    target.write_bytes(bytes(16))
    return external_model(folder, "*/_ORT_MEM_ADDR_/*")


def _own_name(folder: Path) -> Path:
    path = external_model(folder, "Model.onnx")
    (folder / "Model.onnx").write_bytes(bytes(16))
    return path


def _name_of_the_list(folder: Path) -> Path:
    """In the store a list of the files has this name."""
    (folder / "entry.json").write_bytes(bytes(16))
    return external_model(folder, "entry.json")


def _undeclared(folder: Path) -> Path:
    """external_data without data_location: some readers would follow it, some not."""
    _beside(folder)
    model = ModelProto.FromString(external_model(folder, "w.bin").read_bytes())
    model.graph.initializer[0].ClearField("data_location")
    return save(model, folder)


MORE_EXTERNAL_DATA: dict[str, Build] = {
    "dot": _located("./secret.bin"),
    "double_slash": _located("sub//secret.bin"),
    "drive": _located("C:secret.bin"),
    "long": _located("a" * 256),
    "control": _located("w\x1b[2J.bin"),
    "missing": _located("w.bin"),
    "folder": _folder_as_data,
    "location_twice": _twice,
    "split_message": _split_message,
    "attribute": _in_attribute,
    "function": _in_function,
    "subgraph": _in_subgraph,
    "sparse": _sparse_external,
    "sparse_attribute": _sparse_attribute,
    "training": _in_training,
    "default_of_a_function": _default_of_a_function,
    "string": _string_external,
    "memory_address": _memory_address,
    "own_name": _own_name,
    "name_of_the_list": _name_of_the_list,
    "undeclared": _undeclared,
    "offset_no_number": _sized(offset="1_6"),
    "offset_other_digits": _sized(offset="٣"),
    "offset_negative_zero": _sized(offset="-0"),
    "negative_dims": _sized((-2, -2)),
    "length_too_short": _sized(length="8"),
}


def model_with(change: Callable[[ModelProto], None]) -> Build:
    def build(folder: Path) -> Path:
        model = plain_model()
        change(model)
        return save(model, folder)

    return build


def loop(count: int, *, by: str = "initializer") -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        cond = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
        out = helper.make_tensor_value_info("co", TensorProto.BOOL, [])
        step = helper.make_tensor_value_info("i", TensorProto.INT64, [])
        body = helper.make_graph(
            [helper.make_node("Identity", ["c"], ["co"])], "body", [step, cond], [out]
        )
        trips = helper.make_tensor("trips", TensorProto.INT64, [], [count])
        if by == "raw":
            trips = helper.make_tensor(
                "trips", TensorProto.INT64, [], struct.pack("<q", count), raw=True
            )
        if by in ("initializer", "raw"):
            model.graph.initializer.append(trips)
        else:
            value = {"value": trips} if by == "constant" else {"value_int": count}
            model.graph.node.insert(0, helper.make_node("Constant", [], ["trips"], **value))
        model.graph.node.append(helper.make_node("Loop", ["trips", ""], [], body=body, name="loop"))

    return change


def _loop_external(folder: Path) -> Path:
    """The trip count itself stands in another file."""
    path = model_with(loop(1))(folder)
    model = ModelProto.FromString(path.read_bytes())
    trips = model.graph.initializer[1]
    trips.ClearField("int64_data")
    trips.data_location = TensorProto.EXTERNAL
    trips.external_data.add(key="location", value="trips.bin")
    (folder / "trips.bin").write_bytes(struct.pack("<q", 1 << 62))
    return save(model, folder)


def _function_bomb(model: ModelProto) -> None:
    """25 functions, each calling the one before twice: 2^25 nodes in a kilobyte."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    for level in range(26):
        name, domain = (f"F{level - 1}", "local") if level else ("Relu", "")
        nodes = [
            helper.make_node(name, ["a"], ["b"], domain=domain),
            helper.make_node(name, ["b"], ["c"], domain=domain),
        ]
        model.functions.append(
            helper.make_function("local", f"F{level}", ["a"], ["c"], nodes, opsets)
        )
    model.graph.node.append(helper.make_node("F25", ["y"], ["z"], domain="local"))


def _recursion(model: ModelProto) -> None:
    node = helper.make_node("F", ["a"], ["b"], domain="local")
    opsets = [helper.make_opsetid("local", 1)]
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], [node], opsets))


def _function_twice(model: ModelProto) -> None:
    node, opsets = helper.make_node("Relu", ["a"], ["b"]), [helper.make_opsetid("", 21)]
    for _ in range(2):
        model.functions.append(helper.make_function("local", "F", ["a"], ["b"], [node], opsets))


def _loop_in_the_named_domain(model: ModelProto) -> None:
    """`ai.onnx` is another name of the domain of ONNX's own operators."""
    loop(1 << 62)(model)
    model.graph.node[-1].domain = "ai.onnx"


def message(number: int, payload: bytes) -> bytes:
    """One length-delimited protobuf field (number < 16), for what the library will not build."""
    size, length = len(payload), b""
    while size >= 0x80:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


def _nested(folder: Path) -> Path:
    graph = b""
    for _ in range(40):
        graph = message(1, message(5, message(6, graph)))  # node, attribute, graph
    return _written(folder, message(7, graph))


def _nested_type(model: ModelProto) -> None:
    kind = TypeProto()
    kind.tensor_type.elem_type = TensorProto.FLOAT
    for _ in range(40):
        kind = helper.make_sequence_type_proto(kind)
    model.graph.value_info.append(helper.make_value_info("deep", kind))


def _weight(**change: Any) -> Callable[[ModelProto], None]:
    """Change fields of the inline weight (4 float32 in float_data)."""

    def apply(model: ModelProto) -> None:
        weight = model.graph.initializer[0]
        for name, value in change.items():
            weight.ClearField(name)
            if isinstance(value, list):
                getattr(weight, name).extend(value)
            else:
                setattr(weight, name, value)

    return apply


def _high_rank_value(model: ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [1] * 33))


def _sparse_bomb(model: ModelProto) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[1 << 40])
    sparse.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, [1], [0]))


def _nodes(*nodes: tuple[str, list[str], list[str]]) -> Callable[[ModelProto], None]:
    """Other nodes than the Add: (operator, inputs, outputs)."""

    def change(model: ModelProto) -> None:
        del model.graph.node[:]
        model.graph.node.extend(helper.make_node(*one, name=f"n{i}") for i, one in enumerate(nodes))

    return change


def _circle_inside(model: ModelProto) -> None:
    values = [helper.make_tensor_value_info("a", TensorProto.FLOAT, [4])]
    circle = [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    branch = helper.make_graph(circle, "branch", [], values)
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    model.graph.node.append(
        helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    )


def _circle_in_function(model: ModelProto) -> None:
    circle = [helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Relu", ["c"], ["b"])]
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], circle, opsets))


def _renamed(name: str) -> Callable[[ModelProto], None]:
    """The input `x` is called otherwise."""

    def change(model: ModelProto) -> None:
        model.graph.input[0].name = model.graph.node[0].input[0] = name

    return change


def _value_of_a_function(model: ModelProto) -> None:
    node, opsets = helper.make_node("Relu", ["a"], ["b"]), [helper.make_opsetid("", 21)]
    values = [helper.make_tensor_value_info("a\nb", TensorProto.FLOAT, [4])]
    model.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], [node], opsets, value_info=values)
    )


def _axis(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch\nsize"


GRAPHS: dict[str, Build] = {
    "circle": model_with(_nodes(("Add", ["x", "b"], ["y"]), ("Relu", ["y"], ["b"]))),
    "reads_itself": model_with(_nodes(("Add", ["x", "y"], ["y"]))),
    "circle_in_subgraph": model_with(_circle_inside),
    "circle_in_function": model_with(_circle_in_function),
    "out_of_order": model_with(_nodes(("Relu", ["a"], ["y"]), ("Relu", ["x"], ["a"]))),
    "dangling": model_with(_nodes(("Add", ["x", "nothing"], ["y"]))),
    "made_twice": model_with(_nodes(("Relu", ["x"], ["y"]), ("Relu", ["w"], ["y"]))),
    "input_made": model_with(_nodes(("Relu", ["w"], ["x"]), ("Relu", ["x"], ["y"]))),
    "no_output": model_with(_nodes(("Relu", ["x"], ["a"]))),
}
"""Graphs in which a value is read that nothing makes before, or made twice."""

NAMES: dict[str, Build] = {
    "escape": model_with(_renamed("x\x1b[2J")),
    "newline": model_with(_renamed("x\nLayer 7")),
    "nul": model_with(_renamed("x\0")),
    "c1_control": model_with(_renamed("x\x9b2J")),
    "line_separator": model_with(_renamed("x\u2028")),
    "axis": model_with(_axis),
    "value_of_a_function": model_with(_value_of_a_function),
    "node": model_with(lambda m: setattr(m.graph.node[0], "name", "add\x1eother")),
    "weight": model_with(lambda m: setattr(m.graph.initializer[0], "name", "w\r")),
    "domain": model_with(lambda m: setattr(m.graph.node[0], "domain", "a\tb")),
    "half_a_character": lambda folder: _written(
        folder, plain_model().SerializeToString().replace(b"add", b"\xed\xa0\x80")
    ),
}
"""Names that what reads line by line would take apart, or that no text holds."""


def _doubling(kind: int, times: int = 36) -> Callable[[ModelProto], None]:
    """Concat of a value with itself, again and again: 2^36 times as long."""

    def change(model: ModelProto) -> None:
        names = ["k", *(f"c{i}" for i in range(times))]
        model.graph.initializer.append(helper.make_tensor("k", kind, [2], [1, 2]))
        model.graph.node.extend(
            helper.make_node("Concat", [one, one], [twice], axis=0)
            for one, twice in itertools.pairwise(names)
        )
        model.graph.output.append(helper.make_tensor_value_info(names[-1], kind, ["n"]))

    return change


def _range(model: ModelProto) -> None:
    for name, number in (("a", 0), ("b", 1 << 31), ("c", 1)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [number]))
    model.graph.node.append(helper.make_node("Range", ["a", "b", "c"], ["r"]))
    model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.INT64, ["n"]))


def _filled(operator: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        model.graph.initializer.append(
            helper.make_tensor("s", TensorProto.INT64, [2], [1 << 20, 1 << 17])
        )
        inputs = ["s"] if operator == "ConstantOfShape" else ["w2", "s"]
        model.graph.initializer.append(helper.make_tensor("w2", TensorProto.FLOAT, [1, 1], [1.0]))
        model.graph.node.append(helper.make_node(operator, inputs, ["big"]))
        model.graph.node.append(helper.make_node("ReduceSum", ["big"], ["r"], keepdims=0))
        model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, []))

    return change


GROWTH: dict[str, Build] = {
    "range": model_with(_range),
    "doubled_integers": model_with(_doubling(TensorProto.INT64)),
    "doubled_floats": model_with(_doubling(TensorProto.FLOAT)),
    "constant_of_shape": model_with(_filled("ConstantOfShape")),
    "expand": model_with(_filled("Expand")),
    "tile": model_with(_filled("Tile")),
}
"""A kilobyte that asks for 10 GB and more when it is read, or run. The intake does not see it."""

SIZES: dict[str, Build] = {
    "dims_beyond_data": model_with(_weight(dims=[1 << 31, 1 << 31])),
    "dims_without_data": model_with(_weight(dims=[1 << 62], float_data=[])),
    "dims_overflow": model_with(_weight(dims=[1 << 62] * 32)),
    "dims_wrap_to_four": model_with(_weight(dims=[1 << 32, 1 << 32, 4])),  # 4 modulo 2^64
    "dims_overflow_beside_zero": model_with(_weight(dims=[0, 1 << 40, 1 << 40], float_data=[])),
    "negative_dim": model_with(_weight(dims=[-4])),
    "high_rank": model_with(_weight(dims=[1] * 32 + [4])),
    "high_rank_value": model_with(_high_rank_value),
    "unknown_type": model_with(_weight(data_type=9999)),
    "no_type": model_with(_weight(data_type=0)),
    "wrong_field": model_with(_weight(data_type=TensorProto.INT64)),
    "data_twice": model_with(_weight(raw_data=bytes(16))),
    "raw_too_short": model_with(_weight(float_data=[], raw_data=bytes(15))),
    "segment": model_with(lambda m: m.graph.initializer[0].segment.SetInParent()),
    "sparse_bomb": model_with(_sparse_bomb),
    "loop": model_with(loop(1 << 62)),
    "loop_raw": model_with(loop(1 << 62, by="raw")),
    "loop_constant": model_with(loop(1 << 62, by="constant")),
    "loop_value_int": model_with(loop(1 << 62, by="value_int")),
    "loop_external": _loop_external,
    "loop_in_the_named_domain": model_with(_loop_in_the_named_domain),
    "function_bomb": model_with(_function_bomb),
    "recursion": model_with(_recursion),
    "function_twice": model_with(_function_twice),
    "nested_graphs": _nested,
    "nested_types": model_with(_nested_type),
    "long_name": model_with(lambda m: setattr(m.graph.node[0], "name", "n" * 70_000)),
    "embedded_engine": model_with(lambda m: setattr(m.graph.node[0], "op_type", "EPContext")),
    "empty": lambda folder: _written(folder, b""),
    "no_graph": lambda folder: _written(folder, b"\x08\x0a"),
    "text": lambda folder: _written(folder, b"<html>404 not found</html>"),
    "cut": lambda folder: _written(folder, plain_model().SerializeToString()[:-3]),
    "group": lambda folder: _written(folder, b"\x3b\x3c"),
    "long_varint": lambda folder: _written(folder, b"\x08" + b"\xff" * 11),
}
