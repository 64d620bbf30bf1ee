"""The parameters of a model in the graph of its artifact.

Nodes keep the names of their PyTorch modules through fusion and quantization, so a matrix is found
by the product that reads it, a norm by its multiplication, an embedding by its Gather, and the
matrices of experts by their sizes. Every constant of the graph must be one of them, an argument, or
what the network computes itself (rotary frequencies); otherwise the graph computes something that
the network of another program does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.kv_cache import SCALES
from optkit.craft.quantization.qdq import weight_reader
from optkit.craft.quantization.qdq.codes import Codes, FloatCodes
from optkit.craft.sources.hugging_face.expert_files import Mixtures
from optkit.facts.errors import UsageError
from optkit.ground import graph
from optkit.road.packaging.decoders.architecture import OTHER_FORMATS
from optkit.road.packaging.decoders.stored_experts import MIXTURES, stored_experts

_SUMS, _FACTORS = ("Add", "Sum"), ("Mul",)
_NORMS = ("RMSNormalization", "SimplifiedLayerNormalization", "LayerNormalization")
_ELSEWHERE = "the network of another program has no place for it"
_HINTS = {  # by a part of the name of the node that reads the tensor
    "_rescaled": "it rescales the input of a product: build with `quantization: {smooth: off}`, "
    "and with other `weights` than awq",
    "_outliers": "it multiplies the outlier channels of an activation, beside the product of the "
    "others: build with `quantization: {outlier_channels: off}`",
}


class ExpectedParameters(Protocol):
    """The parameters that a graph must have, and no others."""

    @property
    def kind(self) -> str:
        """What messages call it."""

    def tables(self) -> Collection[str]:
        """The modules that are embeddings."""

    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Name of each matrix → [N, K]."""

    def vectors(self) -> Mapping[str, int]:
        """Name of each weight and bias of a norm → its size."""

    @property
    def mixtures(self) -> Mixtures:
        """Those of experts."""

    def computes(self, module: str, numbers: np.ndarray) -> bool:
        """Whether the module computes this vector itself. Raises UsageError if it computes another
        one in its place."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the PyTorch model. Both functions return [N, K] or [N]; the numbers are in
    memory only then.

    stored   as the graph has it: codes or floats
    product  the node that multiplies by it; None: no product does
    """

    name: str
    stored: Callable[[], Codes | FloatCodes | np.ndarray]
    product: ir.Node | None = None

    def read(self) -> Codes | np.ndarray:
        """Without codes that are floats: the numbers that these stand for."""
        held = self.stored()
        return held.numbers() if isinstance(held, FloatCodes) else held


@contextmanager
def _other_formats() -> Iterator[None]:
    """Errors without a remedy get the one that other formats hold this model."""
    try:
        yield
    except UsageError as error:
        error.hint = error.hint or OTHER_FORMATS
        raise


@_other_formats()
def parameters(model: graph.Graph, network: ExpectedParameters) -> dict[str, Parameter]:
    """By name, all parameters of the network, and biases of its matrices as far as the graph
    has them. Numbers are not read yet, except small vectors. The scales of a cache of codes do not
    count.

    Raises UsageError: a parameter is missing, is there twice or has another form; a constant has
    no place in the network; other rotary frequencies than those of config.json.
    """
    finder = _Finder(network)
    for node in model.graph:
        finder.visit(node)
    finder.check_complete()
    finder.check_nothing_else(_constants(model))
    return finder.found


class _Finder:
    """What was found in the nodes so far, and which constants belong to it."""

    def __init__(self, network: ExpectedParameters) -> None:
        self.found: dict[str, Parameter] = {}
        self._network = network
        self._tables = network.tables()
        self._matrices = network.matrices()
        self._vectors = network.vectors()
        self._mixtures = network.mixtures
        self._of_mixtures = network.mixtures.modules()
        self._used: set[ir.Value] = set()

    def visit(self, node: ir.Node) -> None:
        modules = [graph.module_of(name) for name in graph.names_in(node.name or "")]
        names = [f"{module}.weight" for module in modules]
        if node.op_type == "Gather" and len(modules) == 1 and modules[0] in self._tables:
            self._add_embedding(node, str(modules[0]))
        elif node.op_type in weight_reader.PRODUCTS and set(names) <= self._matrices.keys():
            self._add_product(node, [str(module) for module in modules])
        elif modules[0] in self._of_mixtures:
            self._add_experts(node, str(modules[0]))
            self._add_correction(node, str(modules[0]))
        elif names[0] in self._vectors:
            self._add_norm(node, str(modules[0]))
        elif node.op_type == "GroupQueryAttention":
            self._used |= _scales_of_cache(node)
        elif modules[0] is not None:
            self._add_computed(node, modules[0])

    def check_complete(self) -> None:
        wanted = self._matrices.keys() | self._vectors.keys() | self._mixtures.corrections.keys()
        missing = wanted - self.found.keys()
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
                f"it is no parameter of a {self._network.kind} network, but {users} reads it",
                where=f"tensor {value.name!r}",
                hint=next((hint for part, hint in _HINTS.items() if part in users), _ELSEWHERE),
            )

    def _add(
        self, name: str, read: Callable[[], Codes | FloatCodes | np.ndarray], node: ir.Node
    ) -> None:
        if name in self.found:
            raise UsageError(f"{name} is read a second time", where=f"node {node.name!r}")
        product = node if node.op_type in (*weight_reader.PRODUCTS, *MIXTURES) else None
        self.found[name] = Parameter(name, _other_formats()(read), product)

    def _add_embedding(self, node: ir.Node, module: str) -> None:
        """Rows of floats; or of codes, whose scales another Gather of this module reads."""
        name, table = f"{module}.weight", node.inputs[0]
        if table in self._used:  # with the other Gather
            return
        siblings = [
            each
            for each in _readers(node.inputs[1])
            if each.op_type == "Gather" and graph.module_of(each.name or "") == module
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

    def _add_experts(self, node: ir.Node, module: str) -> None:
        """The matrices of one or both products of a mixture, which differ in their sizes."""
        stacks = {stack.shape: stack for stack in self._mixtures.stacks if stack.module == module}
        for stored in stored_experts(node):
            if stored.shape not in stacks:
                raise UsageError(
                    f"experts of {list(stored.shape)} are in the graph, and not by config.json",
                    where=f"node {node.name!r}",
                )
            self._used |= weight_reader.constants_of([stored.weight, stored.scales])
            for name, (expert, rows) in stacks[stored.shape].matrices.items():
                self._add(name, partial(stored.read, expert, rows), node)

    def _add_correction(self, node: ir.Node, module: str) -> None:
        """What a router adds to its scores; its block may own the numbers."""
        owners = (module, module.rpartition(".")[0])
        for name, size in self._mixtures.corrections.items():
            for value in node.inputs if node.op_type in _SUMS else ():
                if name.rpartition(".")[0] in owners and _is_vector(value, size):
                    self._used |= weight_reader.constants_of([value])
                    self._add(name, partial(weight_reader.vector, value), node)

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

    def _add_norm(self, node: ir.Node, module: str) -> None:
        """A normalization with its parameters; or the product or sum behind it that has one."""
        weight, bias = f"{module}.weight", f"{module}.bias"
        if node.op_type in _NORMS:
            places = dict(zip((weight, bias), node.inputs[1:], strict=False))
        elif node.op_type in (*_SUMS, *_FACTORS):
            name = weight if node.op_type in _FACTORS else bias
            vectors = [each for each in node.inputs if _is_vector(each, self._size(name))]
            places = dict.fromkeys([name], vectors[0]) if vectors else {}
        else:
            places = {}
        # a normalization with ones may stand before the product with its parameter
        behind = [use.node for use in node.outputs[0].uses() if use.node.op_type in _FACTORS]
        plain = any(graph.module_of(each.name or "") == module for each in behind)
        for name, value in places.items():
            if name in self._vectors and _is_vector(value, self._size(name)):
                self._used |= weight_reader.constants_of([value])
                if not plain:
                    self._add(name, lambda value=value: weight_reader.vector(value), node)  # type: ignore[misc]

    def _size(self, vector: str) -> int:
        return self._vectors.get(vector, 0)

    def _add_computed(self, node: ir.Node, module: str) -> None:
        for value in node.inputs:
            if _is_long_vector(value) and self._network.computes(
                module, weight_reader.vector(value)
            ):
                self._used |= weight_reader.constants_of([value])


def _reader(
    node: ir.Node, whole: tuple[int, int], rows: slice, ratio: np.ndarray, name: str
) -> Callable[[], Codes | FloatCodes | np.ndarray]:
    def read() -> Codes | FloatCodes | np.ndarray:
        matrix = _shaped(weight_reader.matrix(node), whole, name)
        matrix = matrix[rows] if isinstance(matrix, np.ndarray) else matrix.rows(rows)
        if (ratio == 1).all():
            return matrix
        if not isinstance(matrix, np.ndarray):
            return matrix.scaled(ratio)
        scaled: np.ndarray = matrix.astype(np.float32) * ratio[:, None]
        return scaled

    return read


def _shaped(
    matrix: Codes | FloatCodes | np.ndarray, shape: tuple[int, int], name: str
) -> Codes | FloatCodes | np.ndarray:
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


def _is_long_vector(value: ir.Value | None) -> bool:
    """Whether it is a constant with more than one number, all along its last axis."""
    if value is None or not graph.is_constant(value) or value.shape is None:
        return False
    dims = value.shape.numpy()
    return bool(dims) and dims[-1] > 1 and all(dim == 1 for dim in dims[:-1])


def _constants(model: graph.Graph) -> Iterator[ir.Value]:
    for each in model.graphs():
        yield from (v for v in each.initializers.values() if v.const_value is not None)
