"""Sizes and references in an ONNX file, read from its bytes without the values of tensors.

If two libraries could read a file in two ways (a repeated field, external data in addition to
inline data, a length that does not match the shape), the file is refused. So the content that was
checked is the content that a library loads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from optkit.facts.errors import UnsafeFile
from optkit.ground.intake.files import FileLimits, show
from optkit.ground.intake.messages import Messages
from optkit.ground.intake.stored_tensors import External, Scalar, Tensors

_DEFAULT_DOMAINS = (b"", b"ai.onnx")
_ENGINE_NODE = b"EPContext"  # providers of ONNX Runtime load what it holds, or the file it names


class Operator(NamedTuple):
    """An operator, or a function of the model, that a node calls."""

    domain: bytes
    name: bytes
    overload: bytes

    @property
    def is_onnx(self) -> bool:
        return self.domain == b""


@dataclass
class _Node:
    """One NodeProto of the file."""

    name: bytes = b""
    op_type: bytes = b""
    domain: bytes = b""
    overload: bytes = b""
    inputs: list[bytes] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)
    constants: list[Scalar] = field(default_factory=list)  # in its attributes


@dataclass
class _Body:
    """The nodes of the main graph or of one function, subgraphs included."""

    nodes: int = 0
    calls: Counter[Operator] = field(default_factory=Counter)


class _Names:
    """The values that a node of one graph may read: earlier values of this graph, and those of the
    graphs around it. `unknown`: the outer graphs are not checked, and may have any value."""

    def __init__(self, around: _Names | None = None, *, unknown: bool = False) -> None:
        self._around, self._unknown = around, unknown
        self._own: set[bytes] = set()

    def __contains__(self, name: bytes) -> bool:
        if name in self._own or self._unknown:
            return True
        return self._around is not None and name in self._around

    def give(self, name: bytes) -> bool:
        """Add a name; False if the graph already has it."""
        known = name in self._own
        self._own.add(name)
        return not known


class Scan:
    """One pass over the bytes of a model. Raises UnsafeFile at the first content that is refused.

    Attributes:
        nodes, tensors: their numbers, with subgraphs and functions.
        external: the references to other files; their text is checked, the files are not.
        trip_counts: (name of a Loop, reference to its trip count).
    """

    def __init__(self, data: memoryview, limits: FileLimits) -> None:
        self.nodes = 0
        self.trip_counts: list[tuple[str, External]] = []
        self._limits = limits
        self._messages = Messages(data, limits)
        self._tensors = Tensors(self._messages)
        self._functions: dict[Operator, _Body] = {}
        self._scalars: dict[bytes, list[Scalar]] = {}
        self._loops: list[tuple[bytes, bytes]] = []  # (name, trip count's value name)
        main = _Body()
        self._model(main, len(data))
        self._check_expansion(main)
        self._check_loops()

    @property
    def tensors(self) -> int:
        return self._tensors.count

    @property
    def external(self) -> list[External]:
        return self._tensors.external

    def _model(self, main: _Body, size: int) -> None:
        graphs = 0
        for name, _, a, b in self._messages.walk("ModelProto", 0, size):
            if name == "graph":
                graphs += 1
                self._graph(a, b, main, _Names(), 0)
            elif name == "training":  # reads values of the model's graph: never run here
                for _, _, c, d in self._messages.walk("TrainingInfoProto", a, b):
                    self._graph(c, d, main, _Names(unknown=True), 0)
            else:
                self._function(a, b)
        if not graphs:
            raise UnsafeFile("the file has no graph", hint="is it an ONNX model? export it again")

    def _function(self, start: int, end: int) -> None:
        if len(self._functions) >= self._limits.nodes:
            raise UnsafeFile(f"the model has more than {self._limits.nodes} functions")
        body, names = _Body(), _Names()
        key = {"domain": b"", "name": b"", "overload": b""}
        nodes, outputs = [], []
        for name, _, a, b in self._messages.walk("FunctionProto", start, end):
            if name == "node":
                nodes.append((a, b))
            elif name == "input":
                names.give(self._messages.name(a, b))
            elif name == "output":
                outputs.append(self._messages.name(a, b))
            elif name == "attribute":
                self._attribute(a, b, body, _Names(unknown=True), 0)
            elif name == "value":
                self._messages.value(a, b)
            else:
                key[name] = self._messages.name(a, b)
        for a, b in nodes:
            self._node(a, b, body, names, 0)
        _check_outputs(outputs, names)
        function = _operator(**key)
        if function in self._functions:
            raise UnsafeFile(f"function {show(function.name)} is defined twice")
        self._functions[function] = body

    def _graph(self, start: int, end: int, body: _Body, names: _Names, depth: int) -> None:
        """`names`: the values of this graph; its inputs and constants are added first."""
        if depth > self._limits.nesting:
            raise UnsafeFile(f"graphs are nested deeper than {self._limits.nesting}")
        nodes, outputs = [], []
        for name, _, a, b in self._messages.walk("GraphProto", start, end):
            if name == "node":
                nodes.append((a, b))  # the tensors that they read may come later in the file
            elif name == "tensor":
                tensor, scalar = self._tensors.dense(a, b)
                names.give(tensor)
                if scalar is not None:
                    self._scalars.setdefault(tensor, []).append(scalar)
            elif name == "sparse":
                names.give(self._tensors.sparse(a, b))
            elif name == "input":
                names.give(self._messages.value(a, b))
            elif name == "output":
                outputs.append(self._messages.value(a, b))
            else:
                self._messages.value(a, b)
        for a, b in nodes:
            self._node(a, b, body, names, depth)
        _check_outputs(outputs, names)

    def _node(self, start: int, end: int, body: _Body, names: _Names, depth: int) -> None:
        self.nodes += 1
        body.nodes += 1
        if self.nodes > self._limits.nodes:
            raise UnsafeFile(f"the model has more than {self._limits.nodes} nodes")
        node = self._read_node(start, end, body, names, depth)
        where = f"node {show(node.name or node.op_type)}"
        for name in filter(None, node.inputs):
            if name not in names:
                raise UnsafeFile(
                    f"it reads {show(name)}, which no earlier node computes: the value is missing, "
                    "or the nodes are not in topological order, or they form a cycle",
                    where=where,
                    hint="export the model again; onnx.checker.check_model shows the same error",
                )
        for name in filter(None, node.outputs):
            if not names.give(name):
                raise UnsafeFile(f"value {show(name)} is defined twice", where=where)
        operator = _operator(node.domain, node.op_type, node.overload)
        _check_operator(operator, where)
        body.calls[operator] += 1
        if operator.is_onnx and operator.name == b"Constant" and node.constants:
            first = node.outputs[0] if node.outputs else b""
            self._scalars.setdefault(first, []).extend(node.constants)
        if operator.is_onnx and operator.name == b"Loop" and node.inputs and node.inputs[0]:
            self._loops.append((node.name, node.inputs[0]))

    def _read_node(self, start: int, end: int, body: _Body, names: _Names, depth: int) -> _Node:
        node = _Node()
        for name, _, a, b in self._messages.walk("NodeProto", start, end):
            if name == "attribute":
                node.constants += self._attribute(a, b, body, names, depth)
            elif name == "input":
                node.inputs.append(self._messages.name(a, b))
            elif name == "output":
                node.outputs.append(self._messages.name(a, b))
            else:
                setattr(node, name, self._messages.name(a, b))
        return node

    def _attribute(
        self, start: int, end: int, body: _Body, names: _Names, depth: int
    ) -> list[Scalar]:
        """Check an attribute; return the largest integer and the scalars in it (of a Constant)."""
        largest, scalars = -1, []
        for name, kind, a, b in self._messages.walk("AttributeProto", start, end):
            if name == "int":
                largest = max(largest, self._messages.integer(kind, a, b))
            elif name == "tensor":
                _, scalar = self._tensors.dense(a, b)
                scalars += [] if scalar is None else [scalar]
            elif name == "graph":
                self._graph(a, b, body, _Names(names), depth + 1)
            elif name == "sparse":
                self._tensors.sparse(a, b)
            else:
                self._messages.type(a, b, 0)
        return [largest, *scalars]

    def _check_expansion(self, main: _Body) -> None:
        """Count the nodes after inlining with one sum per function: a file of one kilobyte can
        describe 2^25 nodes."""
        sizes: dict[Operator, int] = {}

        def expanded(body: _Body, depth: int) -> int:
            if depth > self._limits.nesting:
                raise UnsafeFile(
                    f"functions call each other deeper than {self._limits.nesting}, or recursively"
                )
            total = body.nodes
            for call, times in body.calls.items():
                if call in self._functions:
                    if call not in sizes:
                        sizes[call] = expanded(self._functions[call], depth + 1)
                    total += times * sizes[call]
            return total

        for body in (main, *self._functions.values()):
            if expanded(body, 0) > self._limits.expanded_nodes:
                raise UnsafeFile(
                    f"the model has more than {self._limits.expanded_nodes} nodes after inlining"
                )

    def _check_loops(self) -> None:
        for loop, count in self._loops:
            for value in self._scalars.get(count, ()):
                if isinstance(value, External):
                    self.trip_counts.append((show(loop), value))
                else:
                    check_trip_count(value, show(loop), self._limits)


def check_trip_count(count: int, loop: str, limits: FileLimits) -> None:
    """Raise UnsafeFile for a Loop that may run for a practically unlimited time."""
    if count > limits.trip_count:
        raise UnsafeFile(
            f"the Loop runs up to {count} times; the limit is {limits.trip_count}",
            where=f"node {loop}",
            hint="give the loop a smaller bound",
        )


def _check_outputs(outputs: list[bytes], names: _Names) -> None:
    for name in outputs:
        if name not in names:
            raise UnsafeFile(
                f"no node computes the output {show(name)}",
                hint="export the model again; onnx.checker.check_model shows the same error",
            )


def _check_operator(operator: Operator, where: str) -> None:
    if operator.name == _ENGINE_NODE:
        raise UnsafeFile(
            "it embeds a compiled engine, which is machine code",
            where=where,
            hint="give the graph from which the engine was compiled",
        )


def _operator(domain: bytes, name: bytes, overload: bytes) -> Operator:
    return Operator(b"" if domain in _DEFAULT_DOMAINS else domain, name, overload)
