"""Fused layers and memory, read from what TensorRT's builder logs.

With `ProfilingVerbosity.DETAILED` the builder logs one message of this form (VERBOSE):

    Layers:
    Name: fc1_myl0_3, LayerType: gemm, Inputs: [ { Name: ..., Dimensions: [8,64], Strides: [64,1],
    StrideOrder: [1,0], Datatype: Int8, Format: ...}], Constants: [ ... ], Outputs: [ ... ],
    TacticName: ..., StreamId: 0, Metadata: [ONNX Layer: fc1]<US>[ONNX Layer: dq_fc1]

    I/O Tensors:
     Name: x, IOMode: Input, ...

It is the only view of an engine that needs no GPU. The format is undocumented, so nothing is
guessed: what does not parse is an error, never a missing layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from math import prod

from optkit.errors import ToolchainMissing
from optkit.runtime import DTYPE_BITS, FusedLayer, LayerTensor

HEADER = "Layers:"

_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: (?P<inputs>.*?)"
    r"(?:, Constants: (?P<constants>.*?))?, Outputs: (?P<outputs>.*?)"
    r", TacticName: .*?, StreamId: \d+(?:, EventId: \d+)?, Metadata: (?P<metadata>.*)"
)
_KIND = re.compile(r"Name: .*?, LayerType: (\w+), ")
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[-\d,]*)\], Strides: \[[^\]]*\], "
    r"StrideOrder: \[[^\]]*\], Datatype: (?P<dtype>\w+), Format: [^}]*\}"
)
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=\x1f|\[ONNX Layer: |$)")
_MEMORY = re.compile(
    r"(?:Total|Max) (Host Persistent|Device Persistent|Scratch|Activation|Weights) "
    r"Memory: (\d+) bytes"
)

_DTYPES = {
    "Float": "float32", "Half": "float16", "BF16": "bfloat16", "BFloat16": "bfloat16",
    "FP8": "float8e4m3fn", "FP4E2M1": "float4e2m1",
    "Int64": "int64", "Int32": "int32", "Int8": "int8", "UInt8": "uint8", "Bool": "bool",
    "Int4": "int4",
}  # fmt: skip

# Synchronisation between streams, shape arithmetic and branches on the host: no kernel, no data.
_NO_KERNEL = ("signal", "wait", "shape_call", "cjmp", "jmp", "ShapeHostToDevice")

# Kinds that are one matrix product or convolution. Other kinds may name the same ONNX node for what
# was split off it: padding before, bias and requantization behind.
_PRODUCT_KINDS = ("gemm", "correlation", "runtime_fusion")
_PRODUCT_FIRST = ("__myl_Fc", "__myl_Corr", "_gemm")  # names of fusions that begin with a product


def parse_layers(message: str, products: Collection[str]) -> tuple[FusedLayer, ...]:
    """The layers of one `Layers:` message that run a kernel, in order.

    `products`: names of the ONNX nodes that multiply (Conv, MatMul, Gemm); each is attributed to
    one layer. Raises ToolchainMissing for a message or line that is not of the known form.
    """
    if not message.startswith(HEADER):
        raise _unreadable(message)
    rows = message.removeprefix(HEADER).split("\n\nI/O Tensors:")[0].strip("\n").splitlines()
    return _attributed([_layer(row) for row in rows if _runs_kernel(row)], products)


def parse_memory(messages: Iterable[str]) -> dict[str, int]:
    """Bytes by kind (host_persistent, device_persistent, scratch, activation, weights)."""
    found = (_MEMORY.search(message) for message in messages)
    return {row[1].lower().replace(" ", "_"): int(row[2]) for row in found if row}


def _runs_kernel(row: str) -> bool:
    kind = _KIND.match(row)
    return kind is None or kind[1] not in _NO_KERNEL


def _layer(row: str) -> FusedLayer:
    match = _LAYER.fullmatch(row)
    if match is None:
        raise _unreadable(row)
    return FusedLayer(
        name=match["name"],
        kind=match["kind"],
        inputs=_tensors(match["inputs"]),
        constants=_tensors(match["constants"] or "[]"),
        outputs=_tensors(match["outputs"]),
        nodes=tuple(dict.fromkeys(_NODE.findall(match["metadata"]))),
    )


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    if _TENSOR.sub("", text).strip("[], "):
        raise _unreadable(text)
    return tuple(
        LayerTensor(
            match["name"],
            tuple(int(dim) for dim in match["dims"].split(",") if dim),
            _dtype(match["dtype"]),
        )
        for match in _TENSOR.finditer(text)
    )


def _dtype(name: str) -> str:
    if name not in _DTYPES:
        raise _unreadable(f"Datatype: {name}")
    return _DTYPES[name]


def _attributed(layers: list[FusedLayer], products: Collection[str]) -> tuple[FusedLayer, ...]:
    """Give each node of `products` to the one layer that multiplies it."""
    owner: dict[str, int] = {}
    for kinds in (_PRODUCT_KINDS, ("kgen",)):  # attention is generated: its products are in a kgen
        for index, layer in enumerate(layers):
            for node in layer.nodes if layer.kind in kinds else ():
                if node in products:
                    owner.setdefault(node, index)
    owned = [tuple(n for n in layer.nodes if owner.get(n) == i) for i, layer in enumerate(layers)]
    return tuple(
        replace(
            layer, products=mine, dtype=_multiplies_in(layer), weight_dtype=_reads_weight_in(layer)
        )
        if mine
        else layer
        for layer, mine in zip(layers, owned, strict=True)
    )


_NO_FACTOR = ("bool", "int32", "int64")  # masks and indices


def _multiplies_in(layer: FusedLayer) -> str | None:
    """The dtype of the first input that can be multiplied (attention lists its mask first). But a
    fusion whose name shows operations in front of its product (`__myl_CastMulCastFc`: dequantize,
    then multiply) computes in floats."""
    if layer.kind in ("gemm", "correlation") or layer.name.startswith(_PRODUCT_FIRST):
        read = (tensor.dtype for tensor in layer.inputs)
        return next((dtype for dtype in read if dtype not in _NO_FACTOR), None)
    dtypes = [t.dtype for t in (*layer.outputs, *layer.constants)]
    return next((dtype for dtype in dtypes if "float" in dtype), "float32")


def _reads_weight_in(layer: FusedLayer) -> str | None:
    """The dtype of the largest constant (of equal ones the narrowest): beside a weight there are
    scales and biases, and alpha and beta, which are no tensors at all."""
    sizes = [(prod(t.shape), -DTYPE_BITS[t.dtype], t.dtype) for t in layer.constants]
    return max((row for row in sizes if row[0] > 1), default=(0, 0, None))[2]


def _unreadable(row: str) -> ToolchainMissing:
    return ToolchainMissing(
        f"the builder's layer list has a form optkit does not know: {row[:200]!r}",
        where="TensorRT",
        hint="install a version that optkit knows: tensorrt-rtx 1.7",
    )
