"""Fused layers and memory, from TensorRT's descriptions of an engine.

Three forms of one description, all at `ProfilingVerbosity.DETAILED`:

    inspector, JSON     {"Layers": [{"Name": …, "LayerType": …, "Inputs": […], …}], "Bindings": […]}
    inspector, a line   Layers:
    and builder's log   Name: …, LayerType: gemm, Inputs: [ {…}], …, Metadata: [ONNX Layer: fc1]

The builder's log needs no GPU, the inspector needs one. A tensor has one of these forms:

    TensorRT 8, 10      Dimensions: [1,64], Format/Datatype: Half   (or "Row major linear FP32")
    TensorRT 11, RTX    Dimensions: [1,64], Strides: …, StrideOrder: …, Datatype: Half, Format: …

The forms are documented only by examples. So optkit guesses nothing: an unknown kind of layer keeps
its name, an unknown type is "unknown", and a description in another form is an error
(`parse_layers`), after which landing is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from optkit.facts.dtypes import DTYPES
from optkit.facts.engines import UNKNOWN_DTYPE, FusedLayer, LayerTensor
from optkit.facts.errors import ToolchainMissing

HEADER = "Layers:"

_ENDS = re.compile(r"^(?:Bindings|I/O Tensors):", re.MULTILINE)  # follows the last layer
_HEAD = re.compile(r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>[^,]+)(?=, )")
_GROUP = re.compile(r", (Inputs|Constants|Outputs): (?=\[)")
_TENSOR = re.compile(
    r"\{ Name: (?P<Name>.*?), (?:Location: \w+, )?Dimensions: \[(?P<Dimensions>[-\d,]*)\]"
    r"(?P<rest>[^{}]*)\}"
)
_DATATYPE = re.compile(r", (?:Format/)?Data[Tt]ype: (?P<value>[^,{}]*?) ?(?:, |$)")
_TACTIC = re.compile(r", TacticName: (.*?)(?:, |$)")
_STORED = re.compile(r', (Weights|Bias): (\{"Type": "\w+", "Count": \d+\})')
_METADATA = re.compile(r", Metadata: (.*)$")
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f]|\[ONNX Layer: |$)")
_IO_NAME = re.compile(r"^ *(?:Name: )?(.+?)(?:, IOMode: .*)?$")
_MEMORY = re.compile(
    r"(?:Total|Max) (Host Persistent|Device Persistent|Scratch|Activation|Weights) "
    r"Memory: (\d+) bytes"
)

# names of types in layer lists: those of the enumeration, short names, and some others
_DTYPE_WORDS = {
    word: dtype.name
    for dtype in DTYPES.values()
    for word in (dtype.short, (dtype.tensorrt or dtype.short).lower())
} | {"bfloat16": "bfloat16", "double": "float64", "fp4e2m1": "float4e2m1"}
_DTYPE_WORD = re.compile(rf"\b({'|'.join(_DTYPE_WORDS)})\b", re.IGNORECASE)

# Synchronization between streams, shape arithmetic and branches on the host, reshapes that copy
# nothing: they run no kernel and move no data.
_NO_KERNEL = (
    "signal",
    "wait",
    "shape_call",
    "cjmp",
    "jmp",
    "ShapeHostToDevice",
    "NoOp",
    "TrainStation",
)
# a kernel that names no node and only moves data: __myl_Tran_myl0_12, __myl_MoveConc_myl0_3
MOVES_DATA = re.compile(r"__myl_(?:Tran|Move|Conc|Resh|Slic|Spli|Repl|Cast|Copy)+_|Reformat")
# Kinds that copy, convert or hold values. Their names may contain the node for which they do it.
_COPIES = re.compile(r"Reformat|Shuffle|Constant|Copy|Cast|Move|Slice|Concat", re.IGNORECASE)

# Kinds that are one matrix product or convolution, with the operators fused to it. Layers of other
# kinds may name the same ONNX node, for parts of it: padding before, bias and requantization after.
_PRODUCT = re.compile(
    r"gemm|correlation|fusion|conv(?!ert)|matrixmultiply|matmul|fullyconnected", re.IGNORECASE
)
_FUSION = re.compile(r"fusion", re.IGNORECASE)
_PRODUCT_FIRST = ("__myl_Fc", "__myl_Corr", "_gemm")  # names of fusions that begin with the product
_GENERATED = ("kgen", "runtime_fusion")  # fusions of TensorRT-RTX, whose names were compared

# The name of a kernel has the types of input and output, then those of its products and sums:
# sm80_xmma_fprop_implicit_gemm_interleaved_i8f32_i8i32_f32_…, …_gemm_f16f16_f16f16_f16_…
_TACTIC_TYPES = {
    "i8": "int8",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "e4m3": "float8e4m3fn",
}
_IN_TACTIC = re.compile(
    rf"_({'|'.join(_TACTIC_TYPES)})(?:{'|'.join(_TACTIC_TYPES)}|i32)_(?:t?f32|f16|bf16|i8|e4m3)"
)


def parse_layers(text: str, products: Collection[str]) -> tuple[FusedLayer, ...]:
    """The layers of a description, in any of the forms above, that run a kernel, in order.

    `products`: names of the ONNX nodes that multiply (Conv, MatMul, Gemm); each is attributed to
    one layer. Raises ToolchainMissing for a description that is not of a known form.
    """
    described = _from_json(text) if text.lstrip().startswith(("{", "[")) else _from_lines(text)
    layers = [_layer(row, products) for row in described.rows if _kind(row) not in _NO_KERNEL]
    return _attributed(_with_constants(layers, described), products)


def parse_memory(messages: Iterable[str]) -> dict[str, int]:
    """Bytes by kind (host_persistent, device_persistent, scratch, activation, weights)."""
    found = (_MEMORY.search(message) for message in messages)
    return {row[1].lower().replace(" ", "_"): int(row[2]) for row in found if row}


Row = Mapping[str, object]
"""A layer with the keys of the inspector's JSON, which another program wrote."""


@dataclass(frozen=True)
class _Described:
    """The layers. `ends`: names of the engine's inputs and outputs."""

    rows: Sequence[Row]
    ends: frozenset[str]


# ── two forms, one mapping ─────────────────────────────────────────────────────────────────────


def _from_json(text: str) -> _Described:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _unreadable(text) from error
    whole = found if isinstance(found, dict) else {"Layers": found}
    rows = whole.get("Layers")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _unreadable(text)  # only names: the engine was built without details
    ends = whole.get("Bindings") or whole.get("I/O Tensors") or []
    named = (end.get("Name") if isinstance(end, dict) else end for end in ends)
    return _Described(rows, frozenset(map(str, named)))


def _from_lines(text: str) -> _Described:
    if not text.startswith(HEADER):
        raise _unreadable(text)
    layers, *ends = _ENDS.split(text.removeprefix(HEADER), maxsplit=1)
    rows = [_from_line(row) for row in layers.splitlines() if row.strip()]
    named = [_IO_NAME.match(row) for row in "".join(ends).splitlines() if row.strip()]
    return _Described(rows, frozenset(row[1] for row in named if row))


def _from_line(line: str) -> Row:
    head = _HEAD.match(line)
    if head is None:
        raise _unreadable(line)
    if head["LayerType"] in _NO_KERNEL:  # branches have separate fields, which are not read
        return head.groupdict()
    row: dict[str, object] = dict(head.groupdict())
    at = head.end()
    while group := _GROUP.match(line, at):
        row[group[1]], at = _group(line, group.end())
    rest = line[at:]
    row |= {name: json.loads(stored) for name, stored in _STORED.findall(rest)}
    for key, pattern in (("TacticName", _TACTIC), ("Metadata", _METADATA)):
        if match := pattern.search(rest):
            row[key] = match[1]
    return row


def _group(line: str, at: int) -> tuple[list[Row], int]:
    """The tensors of one bracket that opens at `at`, and the index where it ends."""
    found: list[Row] = []
    at += 1
    while not line.startswith("]", at):
        if line[at : at + 1] in (" ", ","):
            at += 1
            continue
        tensor = _TENSOR.match(line, at)
        if tensor is None:
            raise _unreadable(line[at:])
        dims = [int(size) for size in tensor["Dimensions"].split(",") if size]
        told = _DATATYPE.search(tensor["rest"])
        found.append(
            {"Name": tensor["Name"], "Dimensions": dims, "Datatype": told["value"] if told else ""}
        )
        at = tensor.end()
    return found, at + 1


# ── a mapping, a layer ─────────────────────────────────────────────────────────────────────────


def _kind(row: Row) -> str:
    return str(row.get("LayerType", "unknown"))


def _layer(row: Row, products: Collection[str]) -> FusedLayer:
    if "Name" not in row:
        raise _unreadable(str(row))
    kind, stored = _kind(row), tuple(_stored(row))
    layer = FusedLayer(
        name=str(row["Name"]),
        kind=kind,
        inputs=_tensors(row, "Inputs"),
        constants=(*_tensors(row, "Constants", []), *stored),
        outputs=_tensors(row, "Outputs"),
        nodes=tuple(dict.fromkeys(_NODE.findall(str(row.get("Metadata", ""))))),
    )
    if not layer.nodes and not _COPIES.search(kind):
        layer = replace(layer, nodes=_named(layer.name, products))
    # until it is attributed
    return replace(layer, dtype=_by_tactic(str(row.get("TacticName", ""))))


def _tensors(row: Row, name: str, default: object = None) -> tuple[LayerTensor, ...]:
    group = row.get(name, default)
    if not isinstance(group, list):
        raise _unreadable(str(row))
    return tuple(map(_tensor, group))


def _tensor(row: object) -> LayerTensor:
    dims = row.get("Dimensions") if isinstance(row, dict) else None
    if (
        not isinstance(row, dict)
        or not isinstance(dims, list)
        or not all(isinstance(size, int) for size in dims)
    ):
        raise _unreadable(str(row))
    told = next((row[key] for key in _DATATYPE_KEYS if key in row), "")
    return LayerTensor(str(row.get("Name", "")), tuple(dims), _dtype(str(told)))


_DATATYPE_KEYS = ("Datatype", "DataType", "Format/Datatype")


def _stored(row: Row) -> Iterable[LayerTensor]:
    """The weight and the bias in the description of a convolution: type and number of elements."""
    for name in ("Weights", "Bias"):
        told = row.get(name)
        if isinstance(told, dict) and isinstance(count := told.get("Count"), int) and count:
            yield LayerTensor(name.lower(), (count,), _dtype(str(told.get("Type", ""))))


def _dtype(text: str) -> str:
    """The dtype in "Half", or in "Thirty-two wide channel vectorized row major Int8 format". For
    dynamic sizes, TensorRT 10 reports neither."""
    word = _DTYPE_WORD.search(text)
    return _DTYPE_WORDS[word[1].lower()] if word else UNKNOWN_DTYPE


def _by_tactic(tactic: str) -> str | None:
    """The dtype that a kernel reads, from its name."""
    found = _IN_TACTIC.search(tactic)
    return _TACTIC_TYPES[found[1]] if found else None


_NUMBERED = re.compile(r"_myl\d+(_\d+)*$")


def _named(name: str, products: Collection[str]) -> tuple[str, ...]:
    """The products in the name of a layer without metadata: "weight + /fc + /relu", "/a/conv ||
    /b/conv"; Myelin writes "_" for "." and numbers its kernels."""
    terms = {_NUMBERED.sub("", term) for term in re.split(r" \+ | \|\| |\+", name)}
    return tuple(node for node in products if node in terms or node.replace(".", "_") in terms)


def _with_constants(layers: list[FusedLayer], described: _Described) -> list[FusedLayer]:
    """The layers with their constants. TensorRT 10 lists weights among the inputs of a product. A
    constant is an input that is neither an output of a layer nor an input of the engine. If the
    inputs of the engine are not listed, constants are unknown."""
    separate = any("Constants" in row for row in described.rows)
    if separate or not described.ends:
        return layers
    made = {tensor.name for layer in layers for tensor in layer.outputs} | described.ends
    return [_apart(layer, made) for layer in layers]


def _apart(layer: FusedLayer, made: Collection[str]) -> FusedLayer:
    read = tuple(t for t in layer.inputs if t.name in made)
    if not read:  # views of an input or output have separate names
        return layer
    constants = tuple(t for t in layer.inputs if t.name not in made)
    return replace(layer, inputs=read, constants=(*constants, *layer.constants))


def _attributed(layers: list[FusedLayer], products: Collection[str]) -> tuple[FusedLayer, ...]:
    """Give each node of `products` to the one layer that multiplies it: a layer of a kind that is a
    product, otherwise the first layer of another kind that computes (attention is generated, and a
    foreign node or a plugin contains whole parts of the graph)."""
    owner: dict[str, int] = {}
    kinds = (
        lambda kind: _PRODUCT.search(kind),
        lambda kind: not _PRODUCT.search(kind) and not _COPIES.search(kind),
    )
    for wanted in kinds:
        for index, layer in enumerate(layers):
            for node in layer.nodes if wanted(layer.kind) else ():
                if node in products:
                    owner.setdefault(node, index)
    owned = [tuple(n for n in layer.nodes if owner.get(n) == i) for i, layer in enumerate(layers)]
    return tuple(
        replace(
            layer,
            products=mine,
            dtype=_multiplies_in(layer) if mine else None,
            weight_dtype=_reads_weight_in(layer) if mine else None,
        )
        for layer, mine in zip(layers, owned, strict=True)
    )


_NO_FACTOR = ("bool", "int32", "int64")  # masks and indices


def _multiplies_in(layer: FusedLayer) -> str | None:
    """The dtype of the first input that can be multiplied (attention lists its mask first),
    otherwise the dtype in the kernel's name. A generated kernel whose name has operations before
    its product (`__myl_CastMulCastFc`: dequantize, then multiply) computes in floats. None if
    nothing shows it: for a foreign node, a plugin, or a fusion of another compiler."""
    one_product = _PRODUCT.search(layer.kind) and not _FUSION.search(layer.kind)
    if one_product or layer.name.startswith(_PRODUCT_FIRST):
        read = next((t.dtype for t in layer.inputs if t.dtype not in _NO_FACTOR), UNKNOWN_DTYPE)
        return layer.dtype if read == UNKNOWN_DTYPE else read
    if layer.kind not in _GENERATED:
        return layer.dtype
    dtypes = [t.dtype for t in (*layer.outputs, *layer.constants)]
    return next((dtype for dtype in dtypes if "float" in dtype), "float32")


def _reads_weight_in(layer: FusedLayer) -> str | None:
    """The dtype of the largest constant (of equal ones the narrowest). The other constants are
    scales and biases, and alpha and beta, which are not tensors."""
    known = [(t, DTYPES[t.dtype].bits) for t in layer.constants if t.dtype != UNKNOWN_DTYPE]
    sizes = [(prod(t.shape), -bits, t.dtype) for t, bits in known]
    return max((row for row in sizes if row[0] > 1), default=(0, 0, None))[2]


def _unreadable(text: str) -> ToolchainMissing:
    return ToolchainMissing(
        f"the layer list of the engine has an unknown form: {text[:200]!r}",
        where="TensorRT",
        hint="TensorRT 10 and 11, and TensorRT-RTX 1.7, are supported",
    )
