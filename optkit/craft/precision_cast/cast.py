"""FP32 graph → FP16 or BF16 graph, strongly typed: products and data movement run in half
precision, and nodes that half precision would damage stay in FP32.

    settling    constants beyond the range of half that mean infinity, in masks and as bounds, are
                changed to numbers within it
    measuring   the magnitudes of values, on samples (`magnitude`)
    planning    every node gets half precision, or stays in FP32 with a reason (`kept_in_fp32`)
    rewriting   constants get the dtype of their readers; a value with readers of both kinds is cast
                once, after its producer, and all readers of the other kind share that Cast

Inputs and outputs keep their dtype (one Cast at each border), except the caches of a decoder
(`past_key_values.*`, `present.*`), which become half: they pass from call to call, and a Cast on
each side would read and write all of them every time. A value keeps its name and gets the dtype of
its producer; its cast copy is `<name>.fp16` (`.bf16`) or `<name>.fp32`. The name of a graph output
goes to the border Cast, so the value of its producer becomes `<name>.fp16`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from optkit.craft.precision_cast.halves import HALVES, Half
from optkit.craft.precision_cast.kept_in_fp32 import (
    BOUNDED,
    DTYPED,
    FLOAT,
    cache_fits,
    fill_of,
    is_wide,
    plan,
    stands_for_infinity,
)
from optkit.craft.precision_cast.magnitude import Magnitudes
from optkit.facts.errors import InputRefused
from optkit.ground import graph

__all__ = ["HALVES", "CastLog", "to_half"]

_BLOCK_BYTES = 16 << 20  # numbers of a constant that are converted at a time
# the fill of masks during the measurement: softmax treats it as an infinity, and no range remains
_QUIET = 4096.0
_CACHE = re.compile(r"(?:past_key_values|present)\.(.+)")


@dataclass
class CastLog:
    """The result of the cast.

    islands   node kept in FP32 → the reason
    clipped   constant → how many of its numbers were moved into the range of half precision
    caches    inputs and outputs that became half precision
    aliases   new value of this graph → the equal value of the FP32 graph
    measured  the samples of the measured magnitudes; None: nothing was measured
    """

    islands: dict[str, str] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    caches: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    half_nodes: int = 0
    casts: int = 0
    measured: str | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def to_half(
    model: ir.Model, carrier: str = "fp16", measure: Callable[[ir.Model], Magnitudes] | None = None
) -> CastLog:
    """Convert the graph to FP16 or BF16 ("fp16", "bf16") in place. float64 inside becomes float32
    or half too.

    measure: runs a given graph on samples (`magnitude`); without it, nodes whose functions are
    steep stay in FP32.

    Raises InputRefused if the result is not valid ONNX (an operator without a definition that mixes
    dtypes), or if the opset is older than 22 for BF16 (`graph.upgrade`).
    """
    half = HALVES[carrier]
    if model.opset_imports.get("", 0) < half.opset:
        raise InputRefused(
            f"{half.kind.name} needs opset {half.opset}", hint="run graph.upgrade first"
        )
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    log = CastLog()
    measured = None
    if measure is not None:
        quiet = model.clone()
        _settle(quiet, replace(half, fill=_QUIET), CastLog(), _masks)
        measured = measure(quiet)
    _settle(model, half, log, _masks)
    log.measured = None if measured is None else measured.on
    kept = plan(model, half, measured)
    # after the plan, so that a bound of a node in FP32 does not change
    _settle(model, half, log, lambda node: node.op_type in BOUNDED and node not in kept)
    log.islands = {str(node.name): reason for node, reason in kept.items()}
    _Rewrite(model, kept.keys(), half, _caches(model, half, measured), log).apply()
    graph.infer_shapes(model)
    return log


def _masks(node: ir.Node) -> bool:
    return node.op_type not in BOUNDED


def _settle(
    model: ir.Model, half: Half, log: CastLog, concerned: Callable[[ir.Node], bool]
) -> None:
    """Move numbers that stand for an infinity into the range of half precision, for those readers
    for which they do."""
    names = graph.value_names(model)
    for value in list(model.graph.initializers.values()):
        numbers = graph.array(value) if is_wide(value) and not value.is_graph_input() else None
        if numbers is None or not _beyond(numbers, half).any():
            continue
        limits: dict[float, list[Use]] = {}
        for node, index in value.uses():
            owned = node.graph is model.graph and concerned(node)
            if owned and (limit := stands_for_infinity(node, numbers, half)) is not None:
                limits.setdefault(limit, []).append((node, index))
        for limit, uses in limits.items():
            settled = _clipped(numbers, limit, half)
            if len(uses) == len(value.uses()) and not value.is_graph_output():
                _store(value, ir.Tensor(settled, name=value.name))
            else:
                name = graph.claim_name(f"{value.name}.{half.kind.short}.limit", names)
                log.aliases[name] = str(value.name)
                copy = graph.add_constant(model.graph, name, settled)
                for node, index in uses:
                    node.replace_input_with(index, copy)
            log.clipped[str(value.name)] = int(np.count_nonzero(_beyond(numbers, half)))
    _settle_fills(model, half, log, concerned)


def _settle_fills(
    model: ir.Model, half: Half, log: CastLog, concerned: Callable[[ir.Node], bool]
) -> None:
    for node in model.graph:
        numbers = fill_of(node) if concerned(node) else None
        if numbers is None or not _beyond(numbers, half).any():
            continue
        if (limit := stands_for_infinity(node, numbers, half)) is not None:
            settled = _clipped(numbers, limit, half)
            node.attributes.add(ir.AttrTensor("value", ir.Tensor(settled)))
            log.clipped[str(node.name)] = 1


def _beyond(numbers: np.ndarray, half: Half) -> np.ndarray:
    """bool, in the shape of `numbers`: finite, but outside the range of half precision."""
    if not numbers.size or (
        numbers.max() <= half.kind.largest and numbers.min() >= -half.kind.largest
    ):
        return np.zeros(numbers.shape, bool)  # true for most constants: no copy of them is made
    beyond: np.ndarray = np.isfinite(numbers) & (np.abs(numbers) > half.kind.largest)
    return beyond


def _clipped(numbers: np.ndarray, limit: float, half: Half) -> np.ndarray:
    clipped: np.ndarray = np.where(_beyond(numbers, half), np.sign(numbers) * limit, numbers)
    return clipped.astype(numbers.dtype)


def _caches(model: ir.Model, half: Half, measured: Magnitudes | None) -> set[ir.Value]:
    """Inputs and outputs that a decoder passes from call to call; of each pair both or none."""
    pairs: dict[str, list[ir.Value]] = {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        if (match := _CACHE.fullmatch(str(value.name))) is not None:
            pairs.setdefault(match[1], []).append(value)
    fitting = (pair for pair in pairs.values() if all(cache_fits(v, half, measured) for v in pair))
    return {value for pair in fitting for value in pair}


Use = tuple[ir.Node, int]  # a reader and the index of its input


class _Rewrite:
    """The second half of the cast: it gives every value its dtype and inserts Casts between nodes
    of different kinds."""

    def __init__(
        self,
        model: ir.Model,
        kept: Collection[ir.Node],
        half: Half,
        caches: set[ir.Value],
        log: CastLog,
    ) -> None:
        self.graph = model.graph
        self.half = half
        self.kept = kept
        self.caches = caches
        self.names = graph.FreeNames(model)
        self.casts: set[ir.Node] = set()
        self.log = log
        log.caches = sorted(str(value.name) for value in caches)

    def apply(self) -> None:
        nodes = list(self.graph)
        sides = {node: self._sides(node) for node in nodes}
        uses = {node: side[0] for node, side in sides.items()}
        for value in list(self.graph.initializers.values()):
            if is_wide(value) and not value.is_graph_input():
                self._constant(value, uses)
        for value in list(self.graph.inputs):
            if is_wide(value) and value.dtype is not None:
                if value in self.caches:
                    value.type = ir.TensorType(self.half.dtype)
                self._meet(value, value.dtype, uses)
        for node in nodes:
            self._node(node)
            for value, half in zip(node.outputs, sides[node][1], strict=True):
                self._output(value, self.half.dtype if half else FLOAT, uses)
        self._drop_idle_casts()
        self.log.half_nodes = sum(any(v.dtype == self.half.dtype for v in n.outputs) for n in nodes)
        self.log.casts = len(self.casts)

    def _output(self, value: ir.Value, dtype: ir.DataType, uses: dict[ir.Node, list[bool]]) -> None:
        """Give the result of a node its dtype."""
        declared = self.half.dtype if value in self.caches else value.dtype
        if is_wide(value) and declared is not None:
            value.type = ir.TensorType(dtype)
            self._border(value, declared, uses)
            self._meet(value, dtype, uses)

    def _sides(self, node: ir.Node) -> tuple[list[bool], list[bool]]:
        """For each input and output, whether the node needs half precision there."""
        allowed = None if node in self.kept else graph.takes_half(node, self.half.dtype)
        return allowed or ([False] * len(node.inputs), [False] * len(node.outputs))

    def _node(self, node: ir.Node) -> None:
        """Set the attribute with the dtype of the result, if the node has one."""
        if node.op_type not in DTYPED or not is_wide(node.outputs[0]):
            return
        dtype = FLOAT if node in self.kept else self.half.dtype
        if node.op_type == "Cast":
            node.attributes.add(ir.AttrInt64("to", dtype.value))
            return
        given = node.attributes.get("value")
        fill = given.as_tensor().numpy() if given is not None else np.zeros(1)
        cast = fill.astype(dtype.numpy())
        node.attributes.add(ir.AttrTensor("value", ir.Tensor(cast)))

    def _constant(self, value: ir.Value, uses: dict[ir.Node, list[bool]]) -> None:
        """Store the constant in the dtype of its readers; twice if both kinds read it."""
        readers = [use for use in value.uses() if _takes_half(use, uses)]
        if len(readers) == len(value.uses()) and not value.is_graph_output():
            _store(value, _converted(value, self.half.dtype, str(value.name)))
            return
        half = self.half.dtype
        if readers:
            name = self._new_name(str(value.name), self.half.kind.short)
            copy = graph.add_tensor(self.graph, _converted(value, half, name))
            self._redirect(readers, copy)
        if value.dtype != FLOAT and not value.is_graph_output():
            _store(value, _converted(value, FLOAT, str(value.name)))

    def _meet(self, value: ir.Value, dtype: ir.DataType, uses: dict[ir.Node, list[bool]]) -> None:
        """Cast `value` once for all readers that need another dtype."""
        half = self.half.dtype
        for wanted, suffix in ((half, self.half.kind.short), (FLOAT, "fp32")):
            readers = [u for u in value.uses() if _takes_half(u, uses) == (wanted == half)]
            readers = [u for u in readers if u[0] not in self.casts]
            if dtype != wanted and readers:
                name = self._new_name(str(value.name), suffix)
                self._redirect(readers, self._cast(value, wanted, name))

    def _border(
        self, value: ir.Value, declared: ir.DataType, uses: dict[ir.Node, list[bool]]
    ) -> None:
        """A graph output keeps its name and dtype; the value before its Cast is renamed."""
        if not value.is_graph_output() or value.dtype == declared:
            return
        name = str(value.name)
        suffix = self.half.kind.short if value.dtype == self.half.dtype else "fp32"
        value.name = self._new_name(name, suffix)
        result = self._cast(value, declared, name)
        graph.replace_output(self.graph, value, result)
        if declared == FLOAT:
            readers = [use for use in value.uses() if not _takes_half(use, uses)]
            self._redirect((use for use in readers if use[0] not in self.casts), result)

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
        node_name = self.names.node(f"cast_{name}")
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
        new = self.names.value(f"{name}.{suffix}")
        self.log.aliases[new] = self.log.aliases.get(name, name)
        return new

    def _redirect(self, uses: Iterable[Use], value: ir.Value) -> None:
        for node, index in uses:
            node.replace_input_with(index, value)

    def _drop_idle_casts(self) -> None:
        """Remove Casts of the given graph whose input now has the dtype of their result."""
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


def _store(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    value.const_value, value.type = tensor, ir.TensorType(tensor.dtype)


def _converted(value: ir.Value, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """The constant in another dtype. A large one in a data file is converted when it is written, so
    at most one block of it is in memory."""
    source = value.const_value
    assert source is not None
    shape = tuple(source.shape.numpy())
    if not isinstance(source, graph.MappedTensor) or not shape or source.nbytes < _BLOCK_BYTES:
        return ir.Tensor(source.numpy().astype(dtype.numpy()), name=name)
    count = max(_BLOCK_BYTES // (source.nbytes // shape[0]), 1)

    def blocks() -> Iterator[tuple[np.ndarray]]:
        for block in graph.rows(source, count):
            yield (block.astype(dtype.numpy()),)

    return graph.computed([graph.TensorForm(name, dtype, shape)], blocks)[0]
