"""A graph as plain data, with which another graph can be compared: weights are replaced by
digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from safetensors.numpy import save_file

from optkit.facts.codec import to_json
from optkit.ground import graph
from optkit.ground.execute.step import Progress, StepResult
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.outline import (
    OUTLINE,
    SCALES,
    GraphOutline,
    NodeOutline,
    Outline,
    WeightOutline,
)

_BLOCK_BYTES = 8 << 20
_QDQ = ("QuantizeLinear", "DequantizeLinear")
_PRODUCTS = (*graph.WEIGHTED, "MatMulIntegerToFloat", "MatMulNBits", "MatMulBnb4")
_THROUGH = ("Transpose", "Reshape", "Identity")


def run(step: Outline, out: Path, progress: Progress) -> StepResult:
    """The outline, and the scales as arrays whose tensors the outline names."""
    place = step.model.path
    model = graph.load(place / GRAPH if place.is_dir() else place)
    data, scales = outline(graph.infer_shapes(model, strict=False))
    (out / OUTLINE).write_text(json.dumps(to_json(data)))
    save_file({str(index): numbers for index, numbers in enumerate(scales)}, out / SCALES)
    return StepResult()


def outline(model: ir.Model) -> tuple[GraphOutline, list[np.ndarray]]:
    """The outline, and the numbers of every QuantizeLinear and DequantizeLinear, float64 [count],
    by the name of their tensor. At most one block of one weight per thread is in memory."""
    nodes = list(model.graph.all_nodes())
    scaling = {node.inputs[1] for node in nodes if node.op_type in _QDQ}
    weights = [
        value
        for part in model.graphs()
        for value in part.initializers.values()
        if value not in scaling
    ]
    digests = graph.spread(_digest, [value.const_value for value in weights])
    scales = dict(_scales(nodes))
    data = GraphOutline(
        opset=dict(sorted(model.opset_imports.items())),
        inputs=tuple((info.name, info.dtype, info.shape) for info in graph.inputs(model)),
        outputs=tuple((info.name, info.dtype, info.shape) for info in graph.outputs(model)),
        nodes=tuple(map(_node, nodes)),
        weights=tuple(
            WeightOutline(str(value.name), *_form(value.const_value), digest)
            for value, digest in zip(weights, digests, strict=True)
        ),
        scales=tuple(scales),
    )
    return data, list(scales.values())


def _node(node: ir.Node) -> NodeOutline:
    return NodeOutline(
        name=node.name or str(node.outputs[0].name if node.outputs else ""),
        op=f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
        inputs=tuple(None if value is None else value.name for value in node.inputs),
        attributes={
            name: _attribute(attribute) for name, attribute in sorted(node.attributes.items())
        },
        multiplies=_multiplied(node) if node.op_type in _PRODUCTS else None,
    )


def _attribute(attribute: ir.Attr) -> str:
    """The value as text; for tensors and long lists, their digest."""
    if isinstance(attribute.value, ir.TensorProtocol):
        return _digest(attribute.value)
    text = "subgraph" if isinstance(attribute.value, ir.Graph) else str(attribute.value)
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()


def _multiplied(node: ir.Node) -> str:
    """The dtypes of both operands; for operands behind Q/DQ, the stored dtypes: "uint8 × int8"."""
    if node.op_type not in graph.WEIGHTED:
        return node.op_type
    return " × ".join(_dtype(value) for value in node.inputs[:2])


def _dtype(value: ir.Value | None) -> str:
    producer = value.producer() if value is not None else None
    while producer is not None and producer.op_type in _THROUGH and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        value = producer.inputs[0]
        producer = value.producer() if value is not None else None
        if producer is not None and producer.op_type == "QuantizeLinear":
            return _quantized(producer)
    if value is None:
        return "?"
    dtype = value.const_value.dtype if value.const_value is not None else value.dtype
    return "?" if dtype is None else dtype.name.lower()


def _quantized(node: ir.Node) -> str:
    """The dtype that a QuantizeLinear writes: that of its zero point, otherwise its attribute,
    otherwise uint8."""
    point = node.inputs[2] if len(node.inputs) > 2 else None
    if point is not None and point.const_value is not None:
        return point.const_value.dtype.name.lower()
    named = node.attributes.get("output_dtype")
    return ir.DataType(named.as_int()).name.lower() if named and named.as_int() else "uint8"


def _scales(nodes: Sequence[ir.Node]) -> Iterator[tuple[str, np.ndarray]]:
    for node in nodes:
        if node.op_type in _QDQ and node.inputs[0] is not None:
            scale = graph.array(node.inputs[1])
            produced = node.inputs[0].producer()
            again = produced is not None and produced.op_type == "QuantizeLinear"
            if scale is not None and not again:  # a DequantizeLinear behind it has the same scale
                yield str(node.inputs[0].name), np.asarray(scale, np.float64).ravel()


def _form(tensor: ir.TensorProtocol | None) -> tuple[str | None, tuple[int, ...], int]:
    """Its dtype, shape and bytes."""
    if tensor is None:
        return None, (), 0
    return tensor.dtype.name.lower(), tuple(tensor.shape.numpy()), tensor.nbytes


def _digest(tensor: ir.TensorProtocol | None) -> str:
    """sha256 over dtype, shape and numbers, read block by block."""
    dtype, shape, size = _form(tensor)
    form = {"dtype": dtype, "shape": list(shape), "bytes": size}
    hasher = hashlib.sha256(json.dumps(form).encode())
    if tensor is not None:
        for block in graph.blocks(tensor, _BLOCK_BYTES):
            hasher.update(np.ascontiguousarray(block).tobytes())
    return hasher.hexdigest()
