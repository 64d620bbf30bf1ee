"""ONNX files of about a kilobyte whose values grow while they are read: numbers, texts, and shapes
that are empty and yet larger than libraries allow. Every builder gets an empty folder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from onnx import NodeProto, TensorProto, helper

from tests.hostile import onnx_files
from tests.hostile.onnx_files import Build

_INT64, _FLOAT, _STRING = TensorProto.INT64, TensorProto.FLOAT, TensorProto.STRING
_NAMES = ["k", *(f"c{i}" for i in range(36))]


def grown(
    nodes: Sequence[NodeProto], constants: Sequence[TensorProto], output: str, kind: int = _FLOAT,
    shape: Sequence[int | str] | None = None,
) -> Build:  # fmt: skip
    """y = x + w, and beside it these nodes and constants with a further output."""

    def change(model: onnx_files.ModelProto) -> None:
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(constants)
        model.graph.output.append(helper.make_tensor_value_info(output, kind, shape))

    return onnx_files.model_with(change)


def node(op: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    """A node with the name of its operator; "-" stands for a missing input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, [output], name=op.lower(), **attributes)


def integers(name: str, *numbers: int) -> TensorProto:
    return helper.make_tensor(name, _INT64, [len(numbers)], numbers)


def single(name: str, number: float, kind: int = _INT64) -> TensorProto:
    return helper.make_tensor(name, kind, [], [number])


def texts(name: str, *values: str) -> TensorProto:
    return helper.make_tensor(name, _STRING, [len(values)], [text.encode() for text in values])


def _twice(op: str, **attributes: object) -> list[NodeProto]:
    """Each value joined with itself, 36 times."""
    return [
        helper.make_node(op, [one, one], [two], name=f"{op.lower()}_{two}", **attributes)
        for one, two in itertools.pairwise(_NAMES)
    ]


def _summed(grows: NodeProto, *constants: TensorProto, before: Sequence[NodeProto] = ()) -> Build:
    total = helper.make_node("ReduceSum", [grows.output[0]], ["z"], name="sum", keepdims=0)
    return grown([*before, grows, total], constants, "z")


def _zeros(name: str, *dims: int) -> TensorProto:
    return helper.make_tensor(name, _FLOAT, dims, [0.0] * (0 if 0 in dims else dims[0]))


_PATTERN = node("RegexFullMatch", "k", "matched", pattern="(a+)+$")
_COLUMN = helper.make_tensor("a", _FLOAT, [200_000, 1], bytes(800_000), raw=True)
_ROW = helper.make_tensor("b", _FLOAT, [1, 200_000], bytes(800_000), raw=True)

REFUSED: dict[str, tuple[str, Build]] = {
    "doubled_texts": ("concat_c", grown(_twice("Concat", axis=0), [texts("k", "ab", "cd")],
                                        _NAMES[-1], _STRING)),
    "lengthened_texts": ("stringconcat_c", grown(_twice("StringConcat"), [texts("k", "ab")],
                                                 _NAMES[-1], _STRING)),
    "window": ("hannwindow", _summed(node("HannWindow", "n", "b"), single("n", 1 << 34))),
    "pad": ("pad", _summed(node("Pad", "w p", "b"), integers("p", 0, 1 << 35))),
    "one_hot": ("onehot", _summed(
        node("OneHot", "i d v", "b"), integers("i", 1), single("d", 1 << 35),
        helper.make_tensor("v", _FLOAT, [2], [0, 1]))),
    "range_of_a_product": ("range", _summed(
        node("Range", "q m c", "b"), single("a", 1 << 17), single("q", 0), single("c", 1),
        before=[node("Mul", "a a", "m")])),
    "range_of_a_size": ("range", _summed(
        node("Range", "q m c", "b"), single("a", 1 << 34), single("q", 0), single("c", 1),
        before=[node("Relu", "x", "s"), node("Size", "s", "n"), node("Mul", "n a", "m")])),
    "range_of_a_selection": ("range", _summed(
        node("Range", "q m c", "b"), integers("a", 1 << 35, 0), single("q", 0), single("c", 1),
        single("at", 0),
        before=[node("NonZero", "a", "places"), node("GatherND", "a places", "one"),
                node("ReduceMax", "one", "m", keepdims=0)])),
    "outer_product": ("matmul", _summed(node("MatMul", "a b", "m"), _COLUMN, _ROW)),
    "random": ("randomnormal", _summed(node("RandomNormal", "", "b", shape=[1 << 18, 1 << 17]))),
    "empty_of_shape": ("constantofshape", grown(
        [node("ConstantOfShape", "s", "z")], [integers("s", 0, 0, 1 << 62)], "z")),
    "empty_reshape": ("reshape", grown(
        [node("Reshape", "e s", "z", allowzero=1)],
        [_zeros("e", 0), integers("s", 0, 0, 1 << 62)], "z")),
}  # fmt: skip
"""The beginning of the name of the node that is refused, and the builder."""

EMPTY: dict[str, Build] = {
    "one": grown([node("Relu", "e", "z")], [_zeros("e", *[0] * 6, 1 << 62)], "z"),
    "many": grown([node("Concat", "e e", "z", axis=1)], [_zeros("e", *[0] * 31, 1 << 62)], "z"),
}
"""Initializers that the intake refuses."""

TEXTS: dict[str, Build] = {
    "expression": grown(
        [_PATTERN, node("Cast", "matched", "z", to=_FLOAT)], [texts("k", "a" * 60 + "!")], "z"
    ),
    "read": grown([_PATTERN], [texts("k", "a" * 60 + "!")], "matched", TensorProto.BOOL),
}
"""Text that is matched with an expression, for which Python's `re` would need ages."""
