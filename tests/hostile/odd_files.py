"""ONNX files that contradict themselves, the standard, or the patience of whoever runs them. Every
builder gets an empty folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from tests.hostile import growing_files
from tests.hostile.growing_files import integers, node, single, texts
from tests.hostile.onnx_files import Build, model_with

_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64
_LOCAL = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
Change = Callable[[ModelProto], object]


def _beside(nodes: list[NodeProto], constants: Sequence[TensorProto], output: str = "z") -> Build:
    """y = x + w, and beside it these nodes and constants with a vector as a further output."""
    return growing_files.grown(nodes, constants, output, shape=["n"])


def _chain(length: int) -> list[NodeProto]:
    names = ["x", *(f"r{i}" for i in range(length))]
    return [node("Relu", one, two) for one, two in itertools.pairwise(names)]


def _info(name: str, kind: int = _FLOAT, shape: list[int] | None = None) -> object:
    return helper.make_tensor_value_info(name, kind, shape)


def _changed(change: Change) -> Build:
    return model_with(lambda model: [None, change(model)][0])


def _loop(inner: list[NodeProto], trips: str = "t") -> NodeProto:
    """A loop that carries `v`, from x, and whose condition stays true."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), *inner], "body",
        [_info("i", _INT64, []), _info("go", TensorProto.BOOL, []), _info("v")],
        [_info("on", TensorProto.BOOL, []), _info("v2")],
    )  # fmt: skip
    return helper.make_node("Loop", [trips, "yes", "x"], ["z"], body=body, name="loop")


_YES = helper.make_tensor("yes", TensorProto.BOOL, [], [True])


def _loops() -> Build:
    """A million times a million steps; each count alone is within the limit."""
    inner = _loop([helper.make_node("Relu", ["v"], ["v2"])])
    inner.name, inner.input[2], inner.output[0] = "inner", "v", "v2"
    return _beside([_loop([inner])], [single("t", 1_000_000), _YES], "z")


def _functions(*calls: tuple[str, str]) -> Change:
    """Functions of the domain `local`: (its name, the function that it calls)."""

    def change(model: ModelProto) -> None:
        for name, called in calls:
            inner = helper.make_node(called, ["a"], ["b"], domain="local")
            model.functions.append(
                helper.make_function("local", name, ["a"], ["b"], [inner], _LOCAL)
            )
        model.graph.node.append(helper.make_node(calls[0][0], ["y"], ["z"], domain="local"))

    return change


def _called_in_a_branch(model: ModelProto) -> None:
    call = helper.make_node("F", ["a"], ["c"], domain="local")
    branch = helper.make_graph([call], "branch", [], [_info("c")])
    nodes = [
        helper.make_node("Constant", [], ["k"], value=_YES),
        helper.make_node("If", ["k"], ["b"], then_branch=branch, else_branch=branch),
    ]
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], nodes, _LOCAL))
    model.graph.node.append(helper.make_node("F", ["y"], ["z"], domain="local"))


def _own_add(model: ModelProto) -> None:
    """A function of the standard's domain that is called like an operator."""
    body = [helper.make_node("Sub", ["a", "b"], ["c"])]
    model.functions.append(helper.make_function("", "Add", ["a", "b"], ["c"], body, _LOCAL[:1]))


def _reference(model: ModelProto) -> None:
    attribute = AttributeProto(name="axis", ref_attr_name="a", type=AttributeProto.INT)
    model.graph.node[0].attribute.append(attribute)


def _opsets(*versions: int) -> Change:
    def change(model: ModelProto) -> None:
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid("", version) for version in versions)

    return change


def _attribute(op: str, inputs: str, *constants: TensorProto, **values: object) -> Build:
    return _beside([node(op, inputs, "z", **values)], constants, "z")


def _untyped(model: ModelProto) -> None:
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"], axis=0))
    model.graph.node[-1].attribute[0].type = AttributeProto.UNDEFINED


def _quantized(scale: float) -> Build:
    nodes = [node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s", "z")]
    return _beside(nodes, [single("s", scale, _FLOAT)], "z")


_LETTERS = "abcdefghijklmnopqrst"

ODD: dict[str, Build] = {
    "long_chain": _beside(_chain(200_000), [], "r199999"),
    "many_outputs": _beside(
        [helper.make_node("Split", ["x"], [f"s{i}" for i in range(20_000)], num_outputs=20_000)],
        [], "s0"),
    "many_inputs": _beside(
        [helper.make_node("Concat", ["x"] * 60_000, ["z"], name="concat", axis=0)], [], "z"),
    "nested_loops": _loops(),
    "endless_loop": _beside([_loop([node("Relu", "v", "v2")], trips="")], [_YES], "z"),
    "growing_loop": _beside(
        [_loop([node("Concat", "v v", "v2", axis=0)])], [single("t", 1000), _YES], "z"),
    "mutual_recursion": _changed(_functions(("F", "G"), ("G", "F"))),
    "recursion_in_a_branch": _changed(_called_in_a_branch),
    "missing_function": _changed(_functions(("F", "G"))),
    "function_like_an_operator": _changed(_own_add),
    "reference_outside_a_function": _changed(_reference),
    "opset_zero": _changed(_opsets(0)),
    "opset_of_the_future": _changed(_opsets(1 << 40)),
    "opset_negative": _changed(_opsets(-1)),
    "no_opset": _changed(_opsets()),
    "opset_twice": _changed(_opsets(21, 7)),
    "ir_of_the_future": _changed(lambda m: setattr(m, "ir_version", 1 << 40)),
    "no_ir_version": _changed(lambda m: m.ClearField("ir_version")),
    "unknown_operator": _beside([node("Nothing", "x", "z")], [], "z"),
    "unknown_domain": _changed(lambda m: setattr(m.graph.node[0], "domain", "other")),
    "weight_twice": _changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])),
    "input_twice": _changed(lambda m: m.graph.input.append(m.graph.input[0])),
    "output_twice": _changed(lambda m: m.graph.output.append(m.graph.output[0])),
    "input_of_no_type": _changed(lambda m: m.graph.input[0].ClearField("type")),
    "input_of_an_unknown_type": _changed(
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 9999)),
    "negative_size": _changed(
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -7)),
    "huge_size": _changed(
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1 << 62)),
    "declared_otherwise": _changed(
        lambda m: m.graph.value_info.append(_info("y", TensorProto.STRING, [7, 7]))),
    "no_name": _changed(lambda m: setattr(m.graph.node[0], "op_type", "")),
    "no_inputs": _changed(lambda m: m.graph.node[0].ClearField("input")),
    "no_branches": _beside([node("If", "yes", "z")], [_YES], "z"),
    "texts_as_numbers": _beside([node("Add", "x k", "z")], [texts("k", "a", "b", "c", "d")], "z"),
    "large_attribute": _attribute(
        "ReduceSum", "x", name_of_all=list(range(300_000)), keepdims=0),
    "text_as_axis": _attribute("Softmax", "x", axis="one"),
    "untyped_attribute": _changed(_untyped),
    "axis_far_out": _attribute("Softmax", "x", axis=1 << 40),
    "cast_to_an_unknown_type": _attribute("Cast", "x", to=9999),
    "index_far_out": _attribute("Gather", "w i", integers("i", 1 << 40)),
    "shape_overflows": _attribute("Reshape", "x s", integers("s", 1 << 32, 1 << 32)),
    "wrong_turn": _attribute("Transpose", "x", perm=[3, 3]),
    "top_of_too_many": _attribute("TopK", "x k", integers("k", 1 << 62)),
    "padded_far": _attribute("Pad", "x p", integers("p", -(1 << 62), 1 << 62)),
    "enlarged": _attribute(
        "Resize", "x - s", helper.make_tensor("s", _FLOAT, [1], [1e30]), mode="nearest"),
    "all_products": _attribute(
        "Einsum", " ".join("w" * 20), equation=f"{','.join(_LETTERS)}->{_LETTERS}"),
    "scale_is_nan": _quantized(float("nan")),
    "scale_is_zero": _quantized(0.0),
    "scale_is_infinite": _quantized(float("inf")),
}  # fmt: skip
