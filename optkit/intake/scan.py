"""What an ONNX file holds, read from its bytes: sizes and references, never values of tensors.

Where two libraries could read one file in two ways (a field twice, external data beside inline
data, a length that disagrees with the shape), the file is refused, so that what is checked is what
is loaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from optkit.errors import UnsafeFile
from optkit.intake import wire
from optkit.intake.fields import MESSAGES, STORAGE
from optkit.intake.files import Limits, show

_INT64, _STRING = 7, 8

_EXTERNAL_KEYS = frozenset({"location", "offset", "length", "checksum"})
_LOCATION_BYTES = 255
_NAME_BYTES = 1 << 16
_COUNT = re.compile(r"[0-9]{1,19}", re.ASCII)
# Control characters, backslash and what Windows forbids in names (a drive's colon among them). ONNX
# Runtime takes the location `*/_ORT_MEM_ADDR_/*` for an address in its own memory.
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\<>:"|?*]')
_DEFAULT_DOMAINS = (b"", b"ai.onnx")
# Control characters (U+0000 to U+001F, U+007F to U+009F) and Unicode's own ends of lines, in UTF-8:
# what lists layers line by line, as compilers do, would take such a name apart.
_UNPRINTABLE = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")


@dataclass(frozen=True)
class External:
    """One tensor's bytes in another file: [offset, offset + length) of `location`."""

    tensor: str  # for messages
    location: str
    offset: int
    length: int


@dataclass
class _Tensor:
    """One TensorProto as it stands in the file."""

    name: bytes = b""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    location: int = 0  # 1: in another file
    raw: tuple[int, int] | None = None
    entries: Counter[str] = field(default_factory=Counter)  # of float_data, int32_data, ...
    integer: int = 0  # int64_data, when that is one number
    external: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Body:
    """The nodes of the main graph or of one function, subgraphs included."""

    nodes: int = 0
    calls: Counter[tuple[bytes, ...]] = field(default_factory=Counter)


class _Names:
    """The values that a node of one graph may read: its own that were made before, and those of the
    graphs around it. `unknown`: what is around is not looked at, and may have any."""

    def __init__(self, around: _Names | None = None, *, unknown: bool = False) -> None:
        self._around, self._unknown = around, unknown
        self._own: set[bytes] = set()

    def __contains__(self, name: bytes) -> bool:
        if name in self._own or self._unknown:
            return True
        return self._around is not None and name in self._around

    def give(self, name: bytes) -> bool:
        """Enter one; False if the graph has it already."""
        known = name in self._own
        self._own.add(name)
        return not known


class Scan:
    """One pass over a model's bytes. Raises UnsafeFile at the first thing that is refused.

    Attributes:
        nodes, tensors: how many there are, subgraphs and functions included.
        external: the references to other files, lexically checked, to be compared with the files.
        trip_counts: the references that hold a Loop's trip count, with the Loop's name.
    """

    def __init__(self, data: memoryview, limits: Limits) -> None:
        self.nodes = 0
        self.tensors = 0
        self.external: list[External] = []
        self.trip_counts: list[tuple[str, External]] = []
        self._data = data
        self._limits = limits
        self._fields = 0
        self._functions: dict[tuple[bytes, ...], _Body] = {}
        self._scalars: dict[bytes, list[int | External]] = {}
        self._loops: list[tuple[bytes, bytes]] = []  # (name, trip count's value name)
        main = _Body()
        self._model(main)
        self._check_expansion(main)
        self._check_loops()

    def _model(self, main: _Body) -> None:
        graphs = 0
        for name, _, a, b in self._walk("ModelProto", 0, len(self._data)):
            if name == "graph":
                graphs += 1
                self._graph(a, b, main, _Names(), 0)
            elif name == "training":  # reads values of the model's graph: never run here
                for _, _, c, d in self._walk("TrainingInfoProto", a, b):
                    self._graph(c, d, main, _Names(unknown=True), 0)
            else:
                self._function(a, b)
        if not graphs:
            raise UnsafeFile("holds no graph", hint="is it an ONNX model? export it again")

    def _function(self, start: int, end: int) -> None:
        if len(self._functions) >= self._limits.nodes:
            raise UnsafeFile(f"more than {self._limits.nodes} functions")
        body, names = _Body(), _Names()
        key = {"domain": b"", "name": b"", "overload": b""}
        nodes, outputs = [], []
        for name, _, a, b in self._walk("FunctionProto", start, end):
            if name == "node":
                nodes.append((a, b))
            elif name == "input":
                names.give(self._name(a, b))
            elif name == "output":
                outputs.append(self._name(a, b))
            elif name == "attribute":
                self._attribute(a, b, body, _Names(unknown=True), 0)
            elif name == "value":
                self._value(a, b)
            else:
                key[name] = self._name(a, b)
        for a, b in nodes:
            self._node(a, b, body, names, 0)
        _check_outputs(outputs, names)
        identity = _identity(key["domain"], key["name"], key["overload"])
        if identity in self._functions:
            raise UnsafeFile(f"function {show(key['name'])} is defined twice")
        self._functions[identity] = body

    def _graph(self, start: int, end: int, body: _Body, names: _Names, depth: int) -> None:
        """`names`: its own, in which the inputs and constants are entered first."""
        if depth > self._limits.nesting:
            raise UnsafeFile(f"graphs nested deeper than {self._limits.nesting}")
        nodes, outputs = [], []
        for name, _, a, b in self._walk("GraphProto", start, end):
            if name == "node":
                nodes.append((a, b))  # what they read may stand behind them in the file
            elif name == "tensor":
                tensor, scalar = self._tensor(a, b)
                names.give(tensor)
                if scalar is not None:
                    self._scalars.setdefault(tensor, []).append(scalar)
            elif name == "sparse":
                names.give(self._sparse(a, b))
            elif name == "input":
                names.give(self._value(a, b))
            elif name == "output":
                outputs.append(self._value(a, b))
            else:
                self._value(a, b)
        for a, b in nodes:
            self._node(a, b, body, names, depth)
        _check_outputs(outputs, names)

    def _node(self, start: int, end: int, body: _Body, names: _Names, depth: int) -> None:
        self.nodes += 1
        body.nodes += 1
        if self.nodes > self._limits.nodes:
            raise UnsafeFile(f"more than {self._limits.nodes} nodes")
        texts: dict[str, bytes] = {}
        read: list[bytes] = []
        made: list[bytes] = []
        constants: list[int | External] = []
        for name, _, a, b in self._walk("NodeProto", start, end):
            if name == "attribute":
                constants += self._attribute(a, b, body, names, depth)
                continue
            text = self._name(a, b)
            texts.setdefault(name, text)  # of inputs and outputs the first is enough
            if text and name in ("input", "output"):
                (read if name == "input" else made).append(text)
        op, domain = texts.get("op_type", b""), texts.get("domain", b"")
        where = f"node {show(texts.get('name') or op)}"
        for text in read:
            if text not in names:
                raise UnsafeFile(
                    f"reads {show(text)}, which nothing before it makes: it is missing, the nodes "
                    "are out of order, or they form a circle",
                    where=where,
                    hint="export the model again; onnx.checker.check_model tells the same",
                )
        for text in made:
            if not names.give(text):
                raise UnsafeFile(f"value {show(text)} is made twice", where=where)
        body.calls[_identity(domain, op, texts.get("overload", b""))] += 1
        if domain in _DEFAULT_DOMAINS and op == b"Constant" and constants:
            self._scalars.setdefault(texts.get("output", b""), []).extend(constants)
        if domain in _DEFAULT_DOMAINS and op == b"Loop" and texts.get("input"):
            self._loops.append((texts.get("name", b""), texts["input"]))

    def _attribute(
        self, start: int, end: int, body: _Body, names: _Names, depth: int
    ) -> list[int | External]:
        """Checks an attribute; returns the largest integer and the scalars in it (a Constant's)."""
        largest, scalars = -1, []
        for name, kind, a, b in self._walk("AttributeProto", start, end):
            if name == "int":
                value = a if kind == wire.VARINT else self._single_varint(a, b)
                largest = max(largest, wire.signed(value))
            elif name == "tensor":
                _, scalar = self._tensor(a, b)
                scalars += [] if scalar is None else [scalar]
            elif name == "graph":
                self._graph(a, b, body, _Names(names), depth + 1)
            elif name == "sparse":
                self._sparse(a, b)
            else:
                self._type(a, b, 0)
        return [largest, *scalars]

    def _tensor(self, start: int, end: int) -> tuple[bytes, int | External | None]:
        """Checks a tensor's size against its bytes; returns (name, its value if one int64)."""
        self.tensors += 1
        if self.tensors > self._limits.tensors:
            raise UnsafeFile(f"more than {self._limits.tensors} tensors")
        tensor = self._read_tensor(start, end)
        where = f"tensor {show(tensor.name)}" if tensor.name else "a tensor without a name"
        storage = STORAGE.get(tensor.data_type)
        if storage is None:
            raise UnsafeFile(f"unknown element type {tensor.data_type}", where=where)
        elements = _elements(tensor.dims, where)
        if tensor.location not in (0, 1) or (tensor.location == 1) != bool(tensor.external):
            raise UnsafeFile("external_data and data_location disagree", where=where)
        if bool(tensor.external) + (tensor.raw is not None) + len(tensor.entries) > 1:
            raise UnsafeFile("holds its data twice", where=where)
        size = (elements * storage.bits + 7) // 8
        scalar: int | External
        if tensor.data_type == _STRING and (tensor.external or tensor.raw):
            raise UnsafeFile("strings must stand in string_data", where=where)
        if tensor.external:
            scalar = self._external(tensor.external, size, where)
            self.external.append(scalar)
        elif tensor.raw is not None:
            a, b = tensor.raw
            if b - a != size:
                raise UnsafeFile(f"{b - a} bytes do not hold {elements} elements", where=where)
            scalar = int.from_bytes(self._data[a : min(b, a + 8)], "little", signed=True)
        else:
            expected = -(-elements * storage.entries // storage.per_entry)
            if tensor.entries[storage.typed] != expected:
                raise UnsafeFile(f"its data does not hold {elements} elements", where=where)
            scalar = tensor.integer
        return tensor.name, scalar if (tensor.data_type, elements) == (_INT64, 1) else None

    def _read_tensor(self, start: int, end: int) -> _Tensor:
        tensor = _Tensor()
        for name, kind, a, b in self._walk("TensorProto", start, end):
            if name == "dims":
                self._dims(tensor.dims, kind, a, b)
            elif name == "name":
                tensor.name = self._name(a, b)
            elif name == "data_type":
                tensor.data_type = a
            elif name == "data_location":
                tensor.location = a
            elif name == "raw_data":
                tensor.raw = (a, b)
            elif name == "external":
                tensor.external.append((a, b))
                if len(tensor.external) > len(_EXTERNAL_KEYS):
                    raise UnsafeFile("too many external_data entries")
            elif name == "segment":
                raise UnsafeFile("tensors in segments are not supported")
            else:
                tensor.entries[name] += self._entries(name, kind, a, b)
                if name == "int64_data":
                    value = a if kind == wire.VARINT else self._single_varint(a, b)
                    tensor.integer = max(tensor.integer, wire.signed(value))
        return tensor

    def _external(self, entries: list[tuple[int, int]], length: int, where: str) -> External:
        found: dict[str, str] = {}
        for start, end in entries:
            pair = {"key": "", "value": ""}
            for name, _, a, b in self._walk("StringStringEntryProto", start, end):
                try:
                    pair[name] = self._bytes(a, b).decode()
                except UnicodeDecodeError as error:
                    raise UnsafeFile("external_data is not UTF-8", where=where) from error
            key = pair["key"]
            if key not in _EXTERNAL_KEYS or key in found:
                raise UnsafeFile(
                    f"external_data key {show(key)} is unknown or given twice", where=where
                )
            found[key] = pair["value"]
        location = found.get("location", "")
        _check_location(location, where)
        offset = _count(found.get("offset", "0"), "offset", where)
        if _count(found.get("length", str(length)), "length", where) != length:
            raise UnsafeFile(
                f"external_data length {show(found['length'])} is not the shape's {length}",
                where=where,
            )
        return External(where, location, offset, length)

    def _sparse(self, start: int, end: int) -> bytes:
        """Checks a sparse tensor; returns its name, which is that of its values."""
        dims: list[int] = []
        title = b""
        for name, kind, a, b in self._walk("SparseTensorProto", start, end):
            if name == "dims":
                self._dims(dims, kind, a, b)
            else:
                tensor, _ = self._tensor(a, b)
                title = tensor if name == "values" else title
        if _elements(dims, "sparse tensor") > self._limits.proto_bytes:  # runtimes make it dense
            raise UnsafeFile(f"a sparse tensor of {prod(dims)} elements")
        return title

    def _value(self, start: int, end: int) -> bytes:
        """Checks a value's type; returns its name."""
        title = b""
        for name, _, a, b in self._walk("ValueInfoProto", start, end):
            if name == "name":
                title = self._name(a, b)
            else:
                self._type(a, b, 0)
        return title

    def _type(self, start: int, end: int, depth: int) -> None:
        if depth > self._limits.nesting:
            raise UnsafeFile(f"types nested deeper than {self._limits.nesting}")
        for name, _, a, b in self._walk("TypeProto", start, end):
            if name == "tensor":
                for _, _, c, d in self._walk("TypeProto.Tensor", a, b):
                    self._shape(c, d)
            else:
                message = "TypeProto.Map" if name == "map" else "TypeProto.Sequence"
                for _, _, c, d in self._walk(message, a, b):
                    self._type(c, d, depth + 1)

    def _shape(self, start: int, end: int) -> None:
        rank = 0
        for _, _, a, b in self._walk("TensorShapeProto", start, end):
            rank += 1
            for _, _, c, d in self._walk("TensorShapeProto.Dimension", a, b):
                self._name(c, d)
        self._check_rank(rank)

    def _dims(self, dims: list[int], kind: int, a: int, b: int) -> None:
        if kind == wire.VARINT:
            dims.append(wire.signed(a))
        else:
            while a < b and len(dims) <= self._limits.rank:
                value, a = wire.varint(self._data, a, b)
                dims.append(wire.signed(value))
        self._check_rank(len(dims))

    def _check_rank(self, rank: int) -> None:
        if rank > self._limits.rank:
            raise UnsafeFile(f"a tensor of more than {self._limits.rank} dimensions")

    def _entries(self, name: str, kind: int, a: int, b: int) -> int:
        """How many entries one field of typed data adds."""
        if kind != wire.LENGTH or name == "string_data":
            return 1
        size = {"float_data": 4, "double_data": 8}.get(name)
        if size is None:
            return wire.count_varints(self._data, a, b)
        if (b - a) % size:
            raise UnsafeFile(f"{name} is cut inside an element")
        return (b - a) // size

    def _single_varint(self, a: int, b: int) -> int:
        """The value of a packed field that holds one varint, else 0."""
        if a == b:
            return 0
        value, at = wire.varint(self._data, a, b)
        return value if at == b else 0

    def _name(self, a: int, b: int) -> bytes:
        """A name that can be printed, in UTF-8."""
        name = self._bytes(a, b)
        try:
            name.decode()
        except UnicodeDecodeError:
            raise UnsafeFile(f"the name {show(name)} is not UTF-8") from None
        if _UNPRINTABLE.search(name):
            raise UnsafeFile(
                f"the name {show(name)} holds a control character",
                hint="rename it; what reads names line by line would take it apart",
            )
        return name

    def _bytes(self, a: int, b: int) -> bytes:
        if b - a > _NAME_BYTES:
            raise UnsafeFile(f"a name of more than {_NAME_BYTES} bytes")
        return bytes(self._data[a:b])

    def _walk(self, message: str, start: int, end: int) -> Iterator[tuple[str, int, int, int]]:
        """(name, wire type, a, b) of the known fields. Unknown ones hold no tensor and no graph."""
        known = MESSAGES[message]
        seen = set()
        for number, kind, a, b in wire.fields(self._data, start, end):
            self._fields += 1
            if self._fields > self._limits.fields:
                raise UnsafeFile(f"more than {self._limits.fields} protobuf fields")
            found = known.get(number)
            if found is None:
                continue
            if kind not in found.wires:
                raise UnsafeFile(f"{message} field {number} has wire type {kind}")
            if not found.many:
                if number in seen:
                    raise UnsafeFile(f"{message} field {number} stands twice")
                seen.add(number)
            yield found.name, kind, a, b

    def _check_expansion(self, main: _Body) -> None:
        """Count the nodes after inlining, by one sum per function: 2^25 fit in a kilobyte."""
        sizes: dict[tuple[bytes, ...], int] = {}

        def expanded(body: _Body, depth: int) -> int:
            if depth > self._limits.nesting:
                raise UnsafeFile(
                    f"functions call each other deeper than {self._limits.nesting}, or in a circle"
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
                raise UnsafeFile(f"more than {self._limits.expanded_nodes} nodes once inlined")

    def _check_loops(self) -> None:
        for loop, count in self._loops:
            for value in self._scalars.get(count, ()):
                if isinstance(value, External):
                    self.trip_counts.append((show(loop), value))
                else:
                    check_trip_count(value, show(loop), self._limits)


def check_trip_count(count: int, loop: str, limits: Limits) -> None:
    """Raises UnsafeFile for a Loop that may run practically forever."""
    if count > limits.trip_count:
        raise UnsafeFile(
            f"Loop runs up to {count} times, the limit is {limits.trip_count}",
            where=f"node {loop}",
            hint="give the loop a bound that it can reach",
        )


def _check_location(location: str, where: str) -> None:
    """External data lies in the model's folder or below, under a name that any system takes."""
    parts = location.split("/")
    if (
        not 0 < len(location.encode()) <= _LOCATION_BYTES
        or _FORBIDDEN.search(location)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise UnsafeFile(
            f"external data location {show(location)} is no plain relative name",
            where=where,
            hint="keep the data in the model's folder: onnx.save(..., location='weights.bin')",
        )


def _count(text: str, what: str, where: str) -> int:
    if not _COUNT.fullmatch(text):
        raise UnsafeFile(f"external_data {what} {show(text)} is no count of bytes", where=where)
    return int(text)


def _elements(dims: list[int], where: str) -> int:
    if any(d < 0 for d in dims):
        raise UnsafeFile(f"negative dimension in {dims}", where=where)
    if prod(dims) >> 63:
        raise UnsafeFile(f"no memory holds a tensor of shape {dims}", where=where)
    return prod(dims)


def _check_outputs(outputs: list[bytes], names: _Names) -> None:
    for name in outputs:
        if name not in names:
            raise UnsafeFile(
                f"nothing makes the output {show(name)}",
                hint="export the model again; onnx.checker.check_model tells the same",
            )


def _identity(domain: bytes, name: bytes, overload: bytes) -> tuple[bytes, ...]:
    return (b"" if domain in _DEFAULT_DOMAINS else domain, name, overload)
