"""The parameters of a decoder in the graph of its artifact.

Nodes keep the names of their PyTorch modules through fusion and quantization, so a matrix is found
by the product that reads it, a norm by its multiplication, and the embedding by its Gather. Every
constant of the graph must be one of them, an argument, or the rotary frequencies; otherwise the
graph computes something that the network of another program does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.kv_cache import SCALES
from optkit.craft.quantization.qdq import weight_reader
from optkit.craft.quantization.qdq.codes import Codes
from optkit.facts.errors import UsageError
from optkit.ground import graph
from optkit.road.packaging.decoders.architecture import EMBEDDING, OTHER_FORMATS, Architecture

_SUMS, _FACTORS = ("Add", "Sum"), ("Mul",)
_NORMS = ("RMSNormalization", "SimplifiedLayerNormalization", "Mul")
_ROTARY = "rotary_emb"
_RESCALED = "_rescaled"  # in the name of a factor that SmoothQuant or AWQ left in the graph
_ELSEWHERE = "the network of another program has no place for it"
_SMOOTHED = (
    "it rescales the input of a product: build with `quantization: {smooth: off}`, and with other "
    "`weights` than awq"
)
_TOLERANCE = 1e-3  # of frequencies: those of a graph may have been in half precision


@dataclass(frozen=True)
class Parameter:
    """A parameter of the PyTorch model. `read` returns Codes or floats, [N, K] or [N]; the numbers
    are in memory only then."""

    name: str
    read: Callable[[], Codes | np.ndarray]


@contextmanager
def _other_formats() -> Iterator[None]:
    """Errors without a remedy get the one that other formats hold this model."""
    try:
        yield
    except UsageError as error:
        error.hint = error.hint or OTHER_FORMATS
        raise


@_other_formats()
def parameters(model: graph.Graph, architecture: Architecture) -> dict[str, Parameter]:
    """By name, all parameters of the architecture, and biases of its matrices as far as the graph
    has them. Numbers are not read yet, except small vectors. The scales of a cache of codes do not
    count.

    Raises UsageError: a parameter is missing, is there twice or has another form; a constant has
    no place in the architecture; other rotary frequencies than those of config.json.
    """
    finder = _Finder(architecture)
    for node in model.graph:
        finder.visit(node)
    finder.check_complete()
    finder.check_nothing_else(_constants(model))
    return finder.found


class _Finder:
    """What was found in the nodes so far, and which constants belong to it."""

    def __init__(self, architecture: Architecture) -> None:
        self.found: dict[str, Parameter] = {}
        self._architecture = architecture
        self._matrices = architecture.matrices()
        self._vectors = architecture.vectors()
        self._used: set[ir.Value] = set()

    def visit(self, node: ir.Node) -> None:
        modules = [graph.module_of(name) for name in graph.names_in(node.name or "")]
        names = [f"{module}.weight" for module in modules]
        if node.op_type == "Gather" and modules == [EMBEDDING]:
            self._add_embedding(node)
        elif node.op_type in weight_reader.PRODUCTS and set(names) <= self._matrices.keys():
            self._add_product(node, [str(module) for module in modules])
        elif node.op_type in _NORMS and names[0] in self._vectors:
            self._add_norm(node, names[0])
        elif modules[0] is not None and modules[0].endswith(_ROTARY):
            self._check_frequencies(node)
        elif node.op_type == "GroupQueryAttention":
            self._used |= _scales_of_cache(node)

    def check_complete(self) -> None:
        missing = (self._matrices.keys() | self._vectors.keys()) - self.found.keys()
        if missing:
            raise UsageError(
                f"the graph has no node of the parameter {min(missing)}",
                hint="the format needs a graph that optkit exported from a Hugging Face model",
            )

    def check_nothing_else(self, constants: Iterable[ir.Value]) -> None:
        for value in constants:
            tensor = value.const_value
            assert tensor is not None
            if value in self._used or tensor.size <= 1 or not tensor.dtype.is_floating_point():
                continue
            users = ", ".join(sorted({str(node.name) for node in value.consumers()})[:3])
            raise UsageError(
                f"it is no parameter of a {self._architecture.kind} network, but {users} reads it",
                where=f"tensor {value.name!r}",
                hint=_SMOOTHED if _RESCALED in users else _ELSEWHERE,
            )

    def _add(self, name: str, read: Callable[[], Codes | np.ndarray], node: ir.Node) -> None:
        if name in self.found:
            raise UsageError(f"{name} is read a second time", where=f"node {node.name!r}")
        self.found[name] = Parameter(name, _other_formats()(read))

    def _add_embedding(self, node: ir.Node) -> None:
        """Rows of floats; or of codes, whose scales another Gather of this module reads."""
        name, table = f"{EMBEDDING}.weight", node.inputs[0]
        if table in self._used:  # with the other Gather
            return
        siblings = [
            each
            for each in _readers(node.inputs[1])
            if each.op_type == "Gather" and graph.module_of(each.name or "") == EMBEDDING
        ]
        codes, scales = weight_reader.embedding_parts([each.inputs[0] for each in siblings], node)
        self._used |= weight_reader.constants_of([codes, scales])
        shape = self._matrices[name]
        self._add(name, lambda: _shaped(weight_reader.table(codes, scales), shape, name), node)

    def _add_product(self, node: ir.Node, modules: list[str]) -> None:
        """One product, or several of one input with their rows one after another."""
        self._used |= weight_reader.constants_of(weight_reader.inputs_of(node))
        outputs = weight_reader.outputs_of(node, len(modules))
        first, bias = 0, weight_reader.bias_of(node)
        total = sum(self._matrices[f"{module}.weight"][0] for module in modules)
        for module, output in zip(modules, outputs, strict=True):
            name = f"{module}.weight"
            shape = self._matrices[name]
            rows = slice(first, first + shape[0])
            first += shape[0]
            ratio, added = self._behind(output, shape[0])
            added = added if bias is None else added + ratio * bias[rows]
            whole = (total, shape[1])
            self._add(name, _reader(node, whole, rows, ratio, name), node)
            if added.any():
                held = added
                self._add(f"{module}.bias", lambda held=held: held, node)  # type: ignore[misc]

    def _behind(self, output: ir.Value, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """What constants multiply and add to a product: float32 [rows] each."""
        ratio, added = np.ones(rows, np.float32), np.zeros(rows, np.float32)
        while len(uses := list(output.uses())) == 1:
            node = uses[0].node
            others = [value for value in node.inputs if value is not output]
            constants = [value for value in others if _is_vector(value, rows)]
            if len(constants) != 1 or node.op_type not in (*_SUMS, *_FACTORS):
                break
            self._used |= weight_reader.constants_of(constants)
            numbers = weight_reader.vector(constants[0])
            if node.op_type in _FACTORS:
                ratio, added = ratio * numbers, added * numbers
            else:
                added = added + numbers
            output = node.outputs[0]
        return ratio, added

    def _add_norm(self, node: ir.Node, name: str) -> None:
        size = self._vectors[name]
        constants = [value for value in node.inputs if _is_vector(value, size)]
        if constants:
            self._used |= weight_reader.constants_of(constants)
            value = constants[0]
            # a normalization with ones may stand before the product with its parameter
            behind = [use.node for use in node.outputs[0].uses() if use.node.op_type == "Mul"]
            if not any(_is_of(each, name) for each in behind):
                self._add(name, lambda: weight_reader.vector(value), node)

    def _check_frequencies(self, node: ir.Node) -> None:
        architecture = self._architecture
        expected = architecture.frequencies() / architecture.divisors()
        for value in node.inputs:
            if not _is_vector(value, len(expected)):
                continue
            if not np.allclose(weight_reader.vector(value), expected, rtol=_TOLERANCE, atol=0):
                raise UsageError(
                    "its rotary frequencies are not those that config.json describes",
                    where=f"node {node.name!r}",
                )
            self._used |= weight_reader.constants_of([value])


def _is_of(node: ir.Node, parameter: str) -> bool:
    """Whether a node of the graph is of the module that has the parameter."""
    return f"{graph.module_of(node.name or '')}.weight" == parameter


def _reader(
    node: ir.Node, whole: tuple[int, int], rows: slice, ratio: np.ndarray, name: str
) -> Callable[[], Codes | np.ndarray]:
    def read() -> Codes | np.ndarray:
        matrix = _shaped(weight_reader.matrix(node), whole, name)
        matrix = matrix.rows(rows) if isinstance(matrix, Codes) else matrix[rows]
        if (ratio == 1).all():
            return matrix
        if isinstance(matrix, Codes):
            return matrix.scaled(ratio)
        scaled: np.ndarray = matrix.astype(np.float32) * ratio[:, None]
        return scaled

    return read


def _shaped(matrix: Codes | np.ndarray, shape: tuple[int, int], name: str) -> Codes | np.ndarray:
    if matrix.shape != shape:
        raise UsageError(
            f"{name} is {list(matrix.shape)} in the graph, and {list(shape)} by config.json"
        )
    return matrix


def _scales_of_cache(attention: ir.Node) -> set[ir.Value]:
    scales = (attention.inputs[at] for at in SCALES if at < len(attention.inputs))
    return {value for value in scales if value is not None}


def _readers(value: ir.Value | None) -> list[ir.Node]:
    return [] if value is None else [use.node for use in value.uses()]


def _is_vector(value: ir.Value | None, size: int) -> bool:
    """Whether it is a constant with this many numbers along its last axis, and no others."""
    if value is None or not graph.is_constant(value) or value.shape is None:
        return False
    dims = value.shape.numpy()
    return bool(dims) and dims[-1] == size and all(dim == 1 for dim in dims[:-1])


def _constants(model: graph.Graph) -> Iterator[ir.Value]:
    for each in model.graphs():
        yield from (v for v in each.initializers.values() if v.const_value is not None)
