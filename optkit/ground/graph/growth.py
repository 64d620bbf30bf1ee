"""How large the values are that a graph computes from constants alone.

Shape inference, constant folding and a runtime compute these values while they read a graph, before
its first run, and one kilobyte of ONNX can describe 2^36 numbers: a value concatenated with itself
again and again, or one Range. Here only their shapes are computed, node by node, and the numbers of
those of up to 1,024 bytes, because other shapes may follow from them. Shape inference also follows
the numbers of every other value of one axis through Concat nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from optkit.facts.errors import InputRefused

SMALL_BYTES = 1024
"""Shapes and axes have fewer bytes."""

_COMPUTED_BYTES, _PER_STORED_BYTE = 512 << 20, 16
_FOLLOWED = 1 << 22  # numbers of one axis; the library needs 150 bytes for each
_ADDRESSABLE = 1 << 62  # bytes; numpy and others refuse a shape beyond it although it is empty
_STRING_BYTES = 32  # of the object that holds a text
_STRING = onnx.TensorProto.STRING
_DOMAINS = ("", "ai.onnx")
_NUMBERS_FROM_TYPE = ("Shape", "Size")
# their results are not larger than their inputs, and no inference knows their shapes
_SELECTING = ("Compress", "NonZero", "Unique")
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)

Evaluate = Callable[[onnx.NodeProto, list[np.ndarray | None]], list[np.ndarray]]
"""Runs one node on arrays (None: a missing input). Raises InputRefused if it cannot."""


@dataclass(frozen=True)
class _Value:
    """What is known of a value. `constant`: it is the same in each run; `numbers`: the numbers of a
    small constant; `letters`: the length of its longest text, at most."""

    kind: onnx.TypeProto | None = None
    constant: bool = False
    numbers: np.ndarray | None = None
    letters: int = 0

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The shape, if all sizes are known."""
        if self.kind is None or not self.kind.tensor_type.HasField("shape"):
            return None
        dims = self.kind.tensor_type.shape.dim
        known = all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims)
        return tuple(dim.dim_value for dim in dims) if known else None

    @property
    def dtype(self) -> int:
        return 0 if self.kind is None else int(self.kind.tensor_type.elem_type)

    def bytes_of(self, dims: tuple[int, ...]) -> int:
        """The bytes of a tensor of this dtype; if it is not known, of one byte per number."""
        if self.dtype == _STRING:
            return prod(dims) * (self.letters + _STRING_BYTES)
        if not self.dtype:
            return prod(dims)
        return prod(dims) * onnx.helper.tensor_dtype_to_np_dtype(self.dtype).itemsize


def check(model: onnx.ModelProto, constants: Collection[str], evaluate: Evaluate) -> None:
    """Raise InputRefused with the node whose result, computed from constants, is too large.

    constants: the inputs of the graph that stand for initializers. All results together may have
    512 MiB, and 16 bytes for each stored byte.
    """
    walk = _Walk(model, evaluate)
    known = {value.name: _Value(value.type, value.name in constants) for value in model.graph.input}
    stored = sum(
        value.bytes_of(value.dims) for value in known.values() if value.constant and value.dims
    )
    walk.limit = _COMPUTED_BYTES + _PER_STORED_BYTE * stored
    for name, value in known.items():
        walk.check_addressable(name, value)
    walk.graph(model.graph, known)


class _Walk:
    """One pass over the nodes of a model in their order."""

    def __init__(self, model: onnx.ModelProto, evaluate: Evaluate) -> None:
        self.limit = _COMPUTED_BYTES
        self._opsets = list(model.opset_import)
        self._version = next((o.version for o in self._opsets if o.domain in _DOMAINS), 1)
        self._evaluate = evaluate
        self._computed = 0  # bytes of the results so far

    def graph(self, graph: onnx.GraphProto, known: dict[str, _Value]) -> None:
        """`known`: the values that its nodes may read; those that it computes are added."""
        for tensor in graph.initializer:
            known[tensor.name] = _stored(tensor)
            self.check_addressable(tensor.name, known[tensor.name])
        read = _read_for_shapes(graph.node)
        for node in graph.node:
            for inner in _inner_graphs(node):
                self.graph(inner, dict(known))
            inputs = [known.get(name, _Value()) if name else None for name in node.input]
            constant = _is_constant(node, inputs)
            if constant or not read.isdisjoint(node.output):
                known |= self._node(node, inputs, constant)

    def check_addressable(self, where: str, value: _Value) -> None:
        """Raise InputRefused for a shape that libraries refuse, even if a dimension of size 0 makes
        it empty."""
        dims = value.dims or ()
        if value.bytes_of(tuple(max(dim, 1) for dim in dims)) > _ADDRESSABLE:
            raise InputRefused(
                f"its shape {list(dims)} is larger than libraries allow; they ignore dimensions of "
                "size 0 when they check this",
                where=where,
                hint="give the dimensions sizes that the model uses",
            )

    def _node(
        self, node: onnx.NodeProto, inputs: list[_Value | None], constant: bool
    ) -> dict[str, _Value]:
        kinds = self._infer(node, inputs)
        letters = _letters(node, inputs)
        results = {
            name: _Value(kinds.get(name), constant, None, letters)
            for name in filter(None, node.output)
        }
        where = f"node {node.name or node.output[0]!r} ({node.op_type})"
        size = 0
        for value in results.values():
            self.check_addressable(where, value)
            size += 0 if value.dims is None else value.bytes_of(value.dims)
            if node.op_type == "Concat":
                _check_followed(where, value)
        if not constant:
            return results
        self._computed += size
        if self._computed > self.limit:
            shapes = ", ".join(str(list(v.dims)) for v in results.values() if v.dims is not None)
            raise InputRefused(
                f"its result {shapes} follows from constants alone and has {size:,} bytes; all "
                f"such results of this model together may have {self.limit:,}",
                where=where,
                hint="store such a value in the file, or compute it from an input of the model",
            )
        return results | self._numbers(node, inputs, results)

    def _infer(
        self, node: onnx.NodeProto, inputs: list[_Value | None]
    ) -> dict[str, onnx.TypeProto]:
        """The types of the results that follow from the types and numbers of the inputs."""
        named = {
            name: value
            for name, value in zip(node.input, inputs, strict=True)
            if value is not None and value.kind is not None
        }
        if node.domain not in _DOMAINS or named.keys() != {*filter(None, node.input)}:
            return {}
        numbers = {
            name: onnx.numpy_helper.from_array(value.numbers, name)
            for name, value in named.items()
            if value.numbers is not None
        }
        try:
            schema = onnx.defs.get_schema(node.op_type, self._version, "")
            return onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: value.kind for name, value in named.items() if value.kind is not None},
                numbers,
                opset_imports=self._opsets,
            )
        except Exception:  # of many kinds; the inference of the whole graph reports what is wrong
            return {}

    def _numbers(
        self, node: onnx.NodeProto, inputs: list[_Value | None], results: dict[str, _Value]
    ) -> dict[str, _Value]:
        """The results with their numbers, if they are small."""
        arrays = self._arrays(node, inputs, results)
        kinds = {
            name: onnx.helper.make_tensor_type_proto(
                onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(node.output, arrays, strict=False)
            if name and array.dtype.kind in "fiub" and array.nbytes <= SMALL_BYTES
        }
        found = dict(zip(node.output, arrays, strict=False))
        return {name: _Value(kind, True, found[name]) for name, kind in kinds.items()}

    def _arrays(
        self, node: onnx.NodeProto, inputs: list[_Value | None], results: dict[str, _Value]
    ) -> list[np.ndarray]:
        if node.op_type in _NUMBERS_FROM_TYPE:
            dims = inputs[0].dims if inputs and inputs[0] is not None else None
            return [] if dims is None else [_of_shape(node, dims)]
        known = all(value is None or value.numbers is not None for value in inputs)
        small = node.op_type in _SELECTING or all(map(_is_small, results.values()))
        if not known or not small:
            return []
        try:
            return self._evaluate(node, [None if v is None else v.numbers for v in inputs])
        except InputRefused:
            return []


def _is_constant(node: onnx.NodeProto, inputs: Iterable[_Value | None]) -> bool:
    """Whether its results follow from constants, or from the shape of its first input."""
    given = [value for value in inputs if value is not None]
    if node.op_type in _NUMBERS_FROM_TYPE and given and given[0].dims is not None:
        return True
    return all(value.constant for value in given) and not any(_inner_graphs(node))


def _check_followed(where: str, value: _Value) -> None:
    """Raise InputRefused for a list of numbers that shape inference would follow one by one."""
    if value.dims is not None and len(value.dims) == 1 and value.dims[0] > _FOLLOWED:
        raise InputRefused(
            f"its result is one axis of {value.dims[0]:,} numbers, which shape inference follows "
            f"one by one; the limit is {_FOLLOWED:,}",
            where=where,
            hint="give the values that it joins a second axis, of size 1",
        )


def _of_shape(node: onnx.NodeProto, dims: tuple[int, ...]) -> np.ndarray:
    """The result of Shape or Size."""
    if node.op_type == "Size":
        return np.array(prod(dims), np.int64)
    ends = {a.name: a.i for a in node.attribute}
    return np.array(dims[ends.get("start", 0) : ends.get("end")], np.int64)


def _stored(tensor: onnx.TensorProto) -> _Value:
    kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    if tensor.data_type == _STRING:
        return _Value(kind, True, None, max(map(len, tensor.string_data), default=0))
    value = _Value(kind, True)
    if not _is_small(value) or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return value
    array = onnx.numpy_helper.to_array(tensor)
    return _Value(kind, True, array if array.dtype.kind in "fiub" else None)


def _is_small(value: _Value) -> bool:
    """Whether its numbers are few enough to be computed here."""
    if value.dims is None or value.dtype == _STRING or 0 in value.dims:
        return False
    return value.bytes_of(value.dims) <= SMALL_BYTES


def _letters(node: onnx.NodeProto, inputs: Iterable[_Value | None]) -> int:
    """The length of the longest text in the results, at most."""
    lengths = [value.letters for value in inputs if value is not None]
    for attribute in node.attribute if node.op_type == "Constant" else ():
        lengths += map(len, (attribute.s, *attribute.strings, *attribute.t.string_data))
    if node.op_type == "StringConcat":
        return sum(lengths)
    if node.op_type == "StringNormalizer":  # one letter may have three in capitals
        return 3 * max(lengths, default=0)
    return max(lengths, default=0) or _STRING_BYTES  # of a number as text


def _read_for_shapes(nodes: Collection[onnx.NodeProto]) -> set[str]:
    """The values on which the shapes depend that nodes read as numbers, and those of Concat."""
    found: set[str] = set()
    for node in reversed(list(nodes)):
        if node.op_type == "Concat":
            found.update(node.output)
        if node.op_type in _NUMBERS_FROM_TYPE or not found.isdisjoint(node.output):
            found.update(node.input)
    return found


def _inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [
        graph
        for attribute in node.attribute
        if attribute.type in _GRAPHS
        for graph in (attribute.g, *attribute.graphs)
    ]
