"""A layer norm that an exporter wrote as single operators, as one operator (Ba et al.,
arXiv:1607.06450).

    (x − mean x) / √(mean (x − mean x)² + ε) · g + b        LayerNormalization of opset 17

over the last axis. As one operator it accumulates in FP32 with any carrier, so a cast to half
precision puts no Cast inside it. (The optimizer of ONNX Runtime matches the parts across such a
Cast and writes a graph whose types do not fit.) Compilers have one kernel for it, and rescaling can
change its gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from optkit.craft.fusion.pattern import Either, Number, Op, Var, first_match, ints, read_once
from optkit.craft.fusion.rule import Decline, Rule, remove, replace
from optkit.ground import graph


@dataclass(frozen=True)
class Norm:
    """`node` computes gain · source / √(mean(source²) + epsilon)."""

    node: ir.Node
    source: ir.Value
    gain: ir.Value
    epsilon: float


@dataclass(frozen=True)
class LayerNorm(Norm):
    """The source is centred, and `node` adds the bias."""

    bias: ir.Value


def _over_last(mean: ir.Node) -> bool:
    source = mean.inputs[0]
    if source is None or source.shape is None or len(mean.inputs) < 2:
        return False
    kept = bool(mean.attributes.get_int("keepdims", 1))
    return kept and ints(mean.inputs[1]) in ([-1], [len(source.shape) - 1])


_X = Var("x")
_SQUARE = Either((Op("Pow", _X, Number(2.0)), Op("Mul", _X, _X)))
_MEAN_SQUARE = Op("ReduceMean", _SQUARE, where=_over_last)
_ROOT = Op("Sqrt", Op("Add", _MEAN_SQUARE, Number("epsilon")))
_INVERTED = Either((Op("Reciprocal", _ROOT), Op("Div", Number(1.0), _ROOT)))
_OVER_ROOT = Either((Op("Div", Var("same"), _ROOT), Op("Mul", Var("same"), _INVERTED)))
_AFFINE = Op("Add", Op("Mul", Var("normalized"), Var("gain"), result="scaled"), Var("bias"))
_CENTRED = Op("Sub", Var("source"), Op("ReduceMean", Var("source"), where=_over_last))


def check(node: ir.Node) -> LayerNorm | Decline | None:
    for affine in _AFFINE.matches(node.outputs[0]):
        root = over_root_mean_square(affine["normalized"])
        source = uncentred(root[0]) if root is not None else None
        if root is None or source is None:
            continue
        gain, bias = affine["gain"], affine["bias"]
        if not _per_feature(gain, source) or not _per_feature(bias, source):
            return Decline("its gain or bias is not one float32 constant per feature")
        if not read_once(affine["scaled"]):
            return Decline("its result without the bias is also used elsewhere")
        return LayerNorm(node, source, gain, root[1], bias)
    return None


def normalize(match: LayerNorm) -> str:
    node, result = match.node, match.node.outputs[0]
    assert node.graph is not None
    norm = ir.node(
        "LayerNormalization",
        [match.source, match.gain, match.bias],
        {"axis": -1, "epsilon": match.epsilon},
        name=node.name,
    )
    output = norm.outputs[0]
    output.type, output.shape = result.type, result.shape
    node.graph.insert_before(node, norm)
    name = result.name
    replace(result, output)
    output.name = name
    remove(node)
    return "one operator"


def over_root_mean_square(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x, ε) if `value` is x / √(mean(x²) + ε), the mean over the last axis."""
    for match in _OVER_ROOT.matches(value):
        if match.numbers["epsilon"] >= 0 and _same(match["x"], match["same"]):
            return match["x"], match.numbers["epsilon"]
    return None


def uncentred(value: ir.Value) -> ir.Value | None:
    """x if `value` is x − mean(x), the mean over the last axis."""
    match = first_match(_CENTRED, value)
    return None if match is None else match["source"]


def _same(a: ir.Value, b: ir.Value) -> bool:
    """The same value, or the same difference from the mean taken twice."""
    first, second = uncentred(a), uncentred(b)
    return a is b or (first is not None and first is second)


def _per_feature(value: ir.Value, source: ir.Value) -> bool:
    numbers, shape = graph.array(value), source.shape
    if numbers is None or shape is None or source.dtype != ir.DataType.FLOAT:
        return False
    return numbers.ndim == 1 and numbers.size == shape[-1] and value.dtype == source.dtype


layer_norm: Rule[LayerNorm] = Rule("layer_norm", frozenset({"Add"}), check, normalize)
