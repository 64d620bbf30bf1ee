"""FP32 graph → FP16 or BF16 graph, strongly typed: what multiplies and moves runs in half
precision, what half precision would damage stays in FP32 islands.

    planning    every node is Half or an island, with the reason (`plan`)
    rewriting   constants take the dtype of their readers; a value that both kinds read is cast
                once, behind its producer, and all readers of the other kind share that Cast

Inputs and outputs keep their dtype (one Cast at each border). A value keeps its name and takes the
dtype of its producer; its cast copy is `<name>.fp16` (`.bf16`) or `<name>.fp32`. A graph output's
name goes to the border Cast, so its producer's value becomes `<name>.fp16`.

LayerNormalization, GroupNormalization and RMSNormalization take half and accumulate in FP32
(stash_type 1, ONNX operator specification). Softmax subtracts its maximum first, so half is in
range; kept in half, attention compiles to one kernel without a Cast inside.

BF16 has FP32's range, so constants make no islands there. It has 8 bits of mantissa, FP16 has 11:
sums and sensitive functions stay islands, and integers turned into floats do, which BF16 holds
exactly only up to 256 (positions, counts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from optkit import graph
from optkit.errors import InputRefused

_FLOAT = ir.DataType.FLOAT
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class _Half(NamedTuple):
    """What tells the two half precisions apart."""

    dtype: ir.DataType
    name: str
    suffix: str
    largest: float
    tiny: float  # smallest normal number
    opset: int  # the first whose convolutions and pools take it
    integers: bool  # holds the integers that models count with


HALVES = MappingProxyType(
    {
        "fp16": _Half(ir.DataType.FLOAT16, "float16", "fp16", 65504.0, 2.0**-14, 21, True),
        "bf16": _Half(
            ir.DataType.BFLOAT16, "bfloat16", "bf16", (2 - 2.0**-7) * 2.0**127, 2.0**-126, 22, False
        ),
    }
)

# Sums of many terms, and functions whose results leave half's range or precision for inputs
# well inside it (x² from 256, eˣ from 11.1, 1/x below 1.5e-5, sin x from a few hundred).
_SENSITIVE = frozenset(
    {
        *("Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Softplus", "LogSoftmax", "CumSum"),
        *("ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceSumSquare", "GlobalAveragePool"),
        *("Sin", "Cos", "Tan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
        *("BatchNormalization", "InstanceNormalization", "LpNormalization"),
        *("MeanVarianceNormalization", "LRN"),
    }
)
_STASHED = frozenset({"LayerNormalization", "GroupNormalization", "RMSNormalization"})
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Max", "Min", "Clip"})
_MOVING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity"})
_PERIODIC = frozenset({"Sin", "Cos", "Tan"})
_ANGLE = _MOVING | _ARITHMETIC | {"Cast", "Concat", "MatMul", "Einsum", "Slice", "Range"}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
_DTYPED = {"Cast": "to", "ConstantOfShape": "value"}  # the attribute that sets the result's dtype


@dataclass
class CastLog:
    """What the cast did.

    islands  FP32 node → why it stays so
    clipped  constant → how many of its numbers were brought into half's range
    aliases  value that is new in this graph → the value of the FP32 graph that it holds
    """

    islands: dict[str, str] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    half_nodes: int = 0
    casts: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def to_half(model: ir.Model, carrier: str = "fp16") -> CastLog:
    """Turn the graph into FP16 or BF16 ("fp16", "bf16") in place. float64 inside becomes float32 or
    half with the rest.

    Raises InputRefused where the result is not valid ONNX (an operator without a definition that
    mixes dtypes in a way of its own), or the opset is older than 22 for BF16 (`graph.upgrade`).
    """
    half = HALVES[carrier]
    if model.opset_imports.get("", 0) < half.opset:
        raise InputRefused(f"{half.name} needs opset {half.opset}", hint="run graph.upgrade first")
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    islands = plan(model, half)
    rewrite = _Rewrite(model, islands, half)
    rewrite.apply()
    graph.infer_shapes(model)
    return rewrite.log


def plan(model: ir.Model, half: _Half) -> dict[ir.Node, str]:
    """The nodes that stay in FP32 and why. Nodes in subgraphs all do."""
    nodes = list(model.graph)
    islands: dict[ir.Node, str] = {}
    for node in nodes:
        if (reason := _reason(node, half)) is not None:
            islands[node] = reason
    for node in reversed(nodes):
        if node.op_type in _ANGLE and node not in islands and _only_angles(node, islands):
            islands[node] = "it computes an angle"
    while grown := {n: r for n in nodes if n not in islands and (r := _joins(n, islands))}:
        islands.update(grown)
    return islands


def _reason(node: ir.Node, half: _Half) -> str | None:
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if any(not isinstance(value.type, ir.TensorType | None) for value in values):
        return "it works on sequences"
    if any(value.type is None for value in values):
        return "the type of what it reads or makes is not known"
    if not any(_is_wide(value) for value in values):
        return "it holds a subgraph" if _has_subgraph(node) else None
    if node.op_type in _SENSITIVE:
        return f"{node.op_type} loses range or precision in {half.name}"
    if node.op_type in _STASHED and node.attributes.get_int("stash_type", 1) != 1:
        return "it does not accumulate in float32"
    if _has_subgraph(node):
        return "it holds a subgraph"
    allowed = graph.takes_half(node, half.dtype)
    if allowed is None:
        return "its operator is not defined by ONNX"
    if node.op_type not in _DTYPED and (not any(allowed[0]) or _fixes_dtype(node)):
        return f"its operator does not take {half.name} here"
    if not half.integers and node.op_type in ("Cast", "Range") and _counts(node):
        return f"{half.name} does not hold the integers it makes"
    reasons = (_constant_reason(node, value, half) for value in node.inputs)
    return next((why for why in reasons if why is not None), None)


def _counts(node: ir.Node) -> bool:
    source = node.inputs[0]
    return node.op_type == "Range" or (source is not None and source.dtype in _INTEGERS)


def _constant_reason(node: ir.Node, value: ir.Value | None, half: _Half) -> str | None:
    """Why a constant input keeps its node in FP32."""
    numbers = graph.array(value)
    if value is None or numbers is None or not numbers.size or not _is_wide(value):
        return None
    largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
    if largest > half.largest and not _is_limit(node, numbers, half):
        return f"constant {value.name} reaches {largest:.3g}, beyond {half.name}"
    if numbers.size == 1 and 0 < largest < half.tiny and node.op_type not in graph.WEIGHTED:
        return f"constant {value.name} is {largest:.3g}, too small for {half.name}"
    return None


def _is_limit(node: ir.Node, numbers: np.ndarray, half: _Half) -> bool:
    """Numbers that stand for an infinity: masks and bounds. Clipping them changes nothing."""
    beyond = numbers[np.abs(numbers) > half.largest]
    if node.op_type in ("Clip", "Min", "Max", "Where", "Pad"):
        return True
    return node.op_type in ("Add", "Mul") and bool((beyond <= -1e5).all())


def _only_angles(node: ir.Node, islands: dict[ir.Node, str]) -> bool:
    """Every reader is a sine or cosine, or feeds one."""
    readers = [user for value in node.outputs for user in value.consumers()]
    return bool(readers) and all(
        user.op_type in _PERIODIC or islands.get(user) == "it computes an angle" for user in readers
    )


def _joins(node: ir.Node, islands: dict[ir.Node, str]) -> str | None:
    """Arithmetic on an island's results that needs no further Cast belongs to the island: a
    decomposed norm stays whole. So do axis changes between two of its nodes."""
    floats = [v for v in node.inputs if v is not None and _is_wide(v)]
    inside = [v for v in floats if v.producer() in islands]
    if not inside:
        return None
    if node.op_type in _MOVING:
        readers = node.outputs[0].consumers()
        bridges = readers and all(r in islands or r.op_type in _ARITHMETIC for r in readers)
        return "it lies between FP32 nodes" if bridges else None
    if node.op_type not in _ARITHMETIC:
        return None
    cast_already = (v in inside or graph.is_constant(v) or _read_by(v, islands) for v in floats)
    return "it continues an FP32 chain" if all(cast_already) else None


def _read_by(value: ir.Value, islands: dict[ir.Node, str]) -> bool:
    return any(user in islands for user in value.consumers())


Use = tuple[ir.Node, int]  # a reader and the index of its input


class _Rewrite:
    """The second half: give every value its dtype and put Casts where the kinds meet."""

    def __init__(self, model: ir.Model, islands: dict[ir.Node, str], half: _Half) -> None:
        self.graph = model.graph
        self.half = half
        self.islands = islands
        self.names = graph.value_names(model)
        self.node_names = {str(node.name) for node in model.graph.all_nodes()}
        self.casts: set[ir.Node] = set()
        self.log = CastLog({str(node.name): reason for node, reason in islands.items()})

    def apply(self) -> None:
        nodes = list(self.graph)
        sides = {node: self._sides(node) for node in nodes}
        uses = {node: side[0] for node, side in sides.items()}
        for value in list(self.graph.initializers.values()):
            if _is_wide(value) and not value.is_graph_input():
                self._constant(value, uses)
        for value in list(self.graph.inputs):
            if _is_wide(value) and value.dtype is not None:
                self._meet(value, value.dtype, uses)
        for node in nodes:
            self._node(node)
            for value, half in zip(node.outputs, sides[node][1], strict=True):
                declared = value.dtype
                if _is_wide(value) and declared is not None:
                    dtype = self.half.dtype if half else _FLOAT
                    value.type = ir.TensorType(dtype)
                    self._border(value, declared, uses)
                    self._meet(value, dtype, uses)
        self._drop_idle_casts()
        self.log.half_nodes = sum(any(v.dtype == self.half.dtype for v in n.outputs) for n in nodes)
        self.log.casts = len(self.casts)

    def _sides(self, node: ir.Node) -> tuple[list[bool], list[bool]]:
        """Per input and output: does the node want half there?"""
        allowed = None if node in self.islands else graph.takes_half(node, self.half.dtype)
        return allowed or ([False] * len(node.inputs), [False] * len(node.outputs))

    def _node(self, node: ir.Node) -> None:
        """Set the attribute that says the result's dtype, where there is one."""
        if node.op_type not in _DTYPED or not _is_wide(node.outputs[0]):
            return
        dtype = _FLOAT if node in self.islands else self.half.dtype
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", dtype.value)
            return
        given = node.attributes.get("value")
        fill = given.as_tensor().numpy() if given is not None else np.zeros(1)
        halves = dtype == self.half.dtype
        cast = self._halved(str(node.name), fill) if halves else fill.astype(np.float32)
        node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(cast))

    def _constant(self, value: ir.Value, uses: dict[ir.Node, list[bool]]) -> None:
        """Store the constant in the dtype of its readers; twice if both kinds read it."""
        numbers = graph.array(value)
        assert numbers is not None and value.name is not None
        readers = [use for use in value.uses() if _takes_half(use, uses)]
        if len(readers) == len(value.uses()) and not value.is_graph_output():
            _store(value, self._halved(value.name, numbers))
            return
        if value.dtype != _FLOAT and not value.is_graph_output():
            _store(value, numbers.astype(np.float32))
        if readers:
            name = self._new_name(value.name, self.half.suffix)
            copy = graph.add_constant(self.graph, name, self._halved(value.name, numbers))
            self._redirect(readers, copy)

    def _halved(self, name: str, numbers: np.ndarray) -> np.ndarray:
        largest = self.half.largest
        beyond = np.isfinite(numbers) & (np.abs(numbers) > largest)
        if beyond.any():
            self.log.clipped[name] = int(np.count_nonzero(beyond))
            numbers = np.where(np.isfinite(numbers), np.clip(numbers, -largest, largest), numbers)
        halved: np.ndarray = numbers.astype(self.half.dtype.numpy())
        return halved

    def _meet(self, value: ir.Value, dtype: ir.DataType, uses: dict[ir.Node, list[bool]]) -> None:
        """Cast `value` once for all readers that want another dtype than it has."""
        half = self.half.dtype
        for wanted, suffix in ((half, self.half.suffix), (_FLOAT, "fp32")):
            readers = [u for u in value.uses() if _takes_half(u, uses) == (wanted == half)]
            readers = [u for u in readers if u[0] not in self.casts]
            if dtype != wanted and readers:
                name = self._new_name(str(value.name), suffix)
                self._redirect(readers, self._cast(value, wanted, name))

    def _border(
        self, value: ir.Value, declared: ir.DataType, uses: dict[ir.Node, list[bool]]
    ) -> None:
        """A graph output keeps its name and dtype; what computes it is renamed."""
        if not value.is_graph_output() or value.dtype == declared:
            return
        name = str(value.name)
        suffix = self.half.suffix if value.dtype == self.half.dtype else "fp32"
        value.name = self._new_name(name, suffix)
        result = self._cast(value, declared, name)
        for index, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[index] = result
        if declared == _FLOAT:
            readers = [use for use in value.uses() if not _takes_half(use, uses)]
            self._redirect((use for use in readers if use[0] not in self.casts), result)

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
        node_name = graph.claim_name(f"cast_{name}", self.node_names)
        cast = ir.node("Cast", [value], {"to": dtype.value}, name=node_name)
        self.casts.add(cast)
        result = cast.outputs[0]
        result.name, result.type, result.shape = name, ir.TensorType(dtype), value.shape
        producer = value.producer()
        if producer is not None:
            self.graph.insert_after(producer, cast)
        else:
            self.graph.insert_before(self.graph[0], cast)
        return result

    def _new_name(self, name: str, suffix: str) -> str:
        new = graph.claim_name(f"{name}.{suffix}", self.names)
        self.log.aliases[new] = self.log.aliases.get(name, name)
        return new

    def _redirect(self, uses: Iterable[Use], value: ir.Value) -> None:
        for node, index in uses:
            node.replace_input_with(index, value)

    def _drop_idle_casts(self) -> None:
        """Casts of the given graph that now cast to what their input already is."""
        for node in list(self.graph):
            source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
            if node.op_type != "Cast" or source is None or source.dtype != result.dtype:
                continue
            if not result.is_graph_output():
                result.replace_all_uses_with(source)
                self.graph.remove(node, safe=True)
                self.log.aliases.pop(str(result.name), None)


def _takes_half(use: Use, uses: dict[ir.Node, list[bool]]) -> bool:
    node, index = use
    return node in uses and uses[node][index]


def _is_wide(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in _WIDE


def _store(value: ir.Value, numbers: np.ndarray) -> None:
    tensor = ir.Tensor(numbers, name=value.name)
    value.const_value, value.type = tensor, ir.TensorType(tensor.dtype)


def _has_subgraph(node: ir.Node) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in kinds for attribute in node.attributes.values())


def _fixes_dtype(node: ir.Node) -> bool:
    """An attribute says that the result is a wide float, whatever the inputs are."""
    names = ("dtype", "output_dtype", "output_datatype")
    return any(node.attributes.get_int(name) in [d.value for d in _WIDE] for name in names)
