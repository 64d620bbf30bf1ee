"""A graph as plain data that two graphs can be compared by: weights stand as digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from optkit.graph.nodes import WEIGHTED, array
from optkit.graph.shapes import inputs, outputs
from optkit.graph.weights import rows, spread

_BLOCK_BYTES = 8 << 20
_QDQ = ("QuantizeLinear", "DequantizeLinear")
_PRODUCTS = (*WEIGHTED, "MatMulIntegerToFloat", "MatMulNBits", "MatMulBnb4")
_THROUGH = ("Transpose", "Reshape", "Identity")


def outline(model: ir.Model) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(data, scales): `data` has opset, inputs, outputs, nodes (name, op, inputs, attributes, what
    a product multiplies) and weights (name, dtype, shape, bytes, sha256); `scales`, which are none
    of these, the numbers of every QuantizeLinear and DequantizeLinear, float64 [count], by the
    tensor they belong to.

    A node without a name goes by its first output. At most one block of one weight per thread is
    in memory.
    """
    nodes = list(model.graph.all_nodes())
    scaling = {node.inputs[1] for node in nodes if node.op_type in _QDQ}
    weights = [
        value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value not in scaling
    ]
    digests = spread(_digest, [v.const_value for v in weights])
    data = {
        "opset": dict(sorted(model.opset_imports.items())),
        "inputs": [[spec.name, spec.dtype, spec.shape] for spec in inputs(model)],
        "outputs": [[spec.name, spec.dtype, spec.shape] for spec in outputs(model)],
        "nodes": [_node(node) for node in nodes],
        "weights": [
            {"name": value.name, **_form(value.const_value), "digest": digest}
            for value, digest in zip(weights, digests, strict=True)
        ],
    }
    return data, dict(_scales(nodes))


def _node(node: ir.Node) -> dict[str, Any]:
    return {
        "name": node.name or (node.outputs[0].name if node.outputs else ""),
        "op": f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
        "inputs": [None if value is None else value.name for value in node.inputs],
        "attributes": {
            name: _attribute(attribute) for name, attribute in sorted(node.attributes.items())
        },
        "multiplies": _multiplied(node) if node.op_type in _PRODUCTS else None,
    }


def _attribute(attribute: ir.Attr) -> str:
    """The value as text; of tensors and long lists their digest."""
    if isinstance(attribute.value, ir.TensorProtocol):
        return _digest(attribute.value)
    text = "subgraph" if isinstance(attribute.value, ir.Graph) else str(attribute.value)
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()


def _multiplied(node: ir.Node) -> str:
    """The dtypes of both operands, of those behind Q/DQ as they are stored: "uint8 × int8"."""
    if node.op_type not in WEIGHTED:
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
    """What a QuantizeLinear makes: the type of its zero point, else its attribute, else uint8."""
    point = node.inputs[2] if len(node.inputs) > 2 else None
    if point is not None and point.const_value is not None:
        return point.const_value.dtype.name.lower()
    named = node.attributes.get("output_dtype")
    return ir.DataType(named.as_int()).name.lower() if named and named.as_int() else "uint8"


def _scales(nodes: list[ir.Node]) -> Iterator[tuple[str, np.ndarray]]:
    for node in nodes:
        if node.op_type in _QDQ and node.inputs[0] is not None:
            scale = array(node.inputs[1])
            produced = node.inputs[0].producer()
            again = produced is not None and produced.op_type == "QuantizeLinear"
            if scale is not None and not again:  # a DequantizeLinear behind it has the same
                yield str(node.inputs[0].name), np.asarray(scale, np.float64).ravel()


def _form(tensor: ir.TensorProtocol | None) -> dict[str, Any]:
    if tensor is None:
        return {"dtype": None, "shape": [], "bytes": 0}
    return {
        "dtype": tensor.dtype.name.lower(),
        "shape": list(tensor.shape.numpy()),
        "bytes": tensor.nbytes,
    }


def _digest(tensor: ir.TensorProtocol | None) -> str:
    """sha256 over dtype, shape and numbers, block by block."""
    hasher = hashlib.sha256(json.dumps(_form(tensor)).encode())
    if tensor is not None:
        dims = tensor.shape.numpy()
        row = tensor.nbytes // dims[0] if dims and dims[0] else 0
        for block in rows(tensor, max(_BLOCK_BYTES // max(row, 1), 1)):
            hasher.update(np.ascontiguousarray(block).tobytes())
    return hasher.hexdigest()
