"""Branches of a graph in which adapters compute.

    x ──────── MatMulNBits ──────── + ── y
     └─ lora_A [K, r] ── lora_B [r, N] ─┘

The two matrices are initializers that are also inputs of the graph, so ONNX Runtime lets a run
replace them (an adapter file, or a feed). Those in the graph have rank 0, and their product is 0.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.qdq import weight_reader
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground import graph
from optkit.road.packaging.lora.peft_folder import Lora

_PRODUCTS = frozenset({"MatMul", "Gemm", "MatMulNBits", "MatMulBnb4"})


def names(module: str) -> tuple[str, str]:
    """The matrices of a module in the graph."""
    return f"{module}.lora_A", f"{module}.lora_B"


def parameters(adapter: Lora) -> dict[str, np.ndarray]:
    """The matrices by their names in the graph: [K, r] and [r, N], float32."""
    return {
        name: np.ascontiguousarray(matrix.T)
        for module, layer in adapter.layers.items()
        for name, matrix in zip(names(module), layer, strict=True)
    }


def attach(model: graph.Graph, adapter: Lora) -> None:
    """Give each layer of the adapter a branch, unless it has one. Raises InputRefused for a layer
    that the graph does not have with floats as its input, or of another size."""
    results = _results(model, adapter)
    for module, (down, up) in adapter.layers.items():
        if module not in results:
            raise InputRefused(
                f"the graph has no product of {module} with floats as its input",
                where=adapter.where,
                hint="an adapter fits a linear layer of the model that it was trained on, in a "
                "build that quantizes no activations: fp32, int4, w4a8 or nf4",
            )
        node, result = results[module]
        sizes = _width(node.inputs[0]), _width(result)
        if sizes != (down.shape[1], up.shape[0]):
            raise InputRefused(
                f"{module} maps {down.shape[1]} numbers to {up.shape[0]} in the adapter, and "
                f"{sizes[0]} to {sizes[1]} in the graph",
                where=adapter.where,
                hint="is it an adapter of this model? its config names the base it was trained on",
            )
        if names(module)[0] not in model.graph.initializers:
            _branch(model, module, node, result)


def _results(model: graph.Graph, adapter: Lora) -> dict[str, tuple[ir.Node, ir.Value]]:
    """Module → the node that multiplies by its weight, and the value that is its result."""
    found: dict[str, tuple[ir.Node, ir.Value]] = {}
    for node in model.graph:
        if node.op_type not in _PRODUCTS or not _takes_floats(node):
            continue
        modules = [graph.module_of(name) for name in graph.names_in(node.name or "")]
        if adapter.layers.keys().isdisjoint(modules):
            continue
        results = weight_reader.outputs_of(node, len(modules))
        found |= {str(name): (node, at) for name, at in zip(modules, results, strict=True)}
    return found


def _takes_floats(node: ir.Node) -> bool:
    """Whether its input is float32, and no codes."""
    value = node.inputs[0]
    if value is None or value.dtype != ir.DataType.FLOAT or graph.is_constant(value):
        return False
    producer = value.producer()
    return producer is None or producer.op_type != "DequantizeLinear"


def _width(value: ir.Value | None) -> int | str:
    assert value is not None
    return graph.dims(value)[-1] if value.shape is not None else "an unknown number"


def _branch(model: graph.Graph, module: str, node: ir.Node, result: ir.Value) -> None:
    """Add the branch of a module to its result."""
    owner, free = graph.owner(node), graph.FreeNames(model)
    first, second = names(module)
    rank = f"{module}.rank"
    down = _matrix(owner, first, (_width(node.inputs[0]), rank))
    up = _matrix(owner, second, (rank, _width(result)))
    uses = [(use.node, use.idx) for use in result.uses()]
    inner = ir.node("MatMul", [node.inputs[0], down], name=free.node(f"{module}.lora_A/MatMul"))
    outer = ir.node("MatMul", [*inner.outputs, up], name=free.node(f"{module}.lora_B/MatMul"))
    total = ir.node("Add", [result, *outer.outputs], name=free.node(f"{module}.lora/Add"))
    producer = result.producer()
    assert producer is not None
    owner.insert_after(producer, [inner, outer, total])
    for each in (inner, outer, total):
        each.outputs[0].name, each.outputs[0].type = free.value(f"{each.name}_out"), result.type
    (added,) = total.outputs
    added.shape = outer.outputs[0].shape = result.shape
    for user, at in uses:
        user.replace_input_with(at, added)
    if result.is_graph_output():
        graph.replace_output(owner, result, added)
        added.name, result.name = result.name, added.name


def _matrix(owner: ir.Graph, name: str, shape: tuple[int | str, int | str]) -> ir.Value:
    """An input of the graph whose default has rank 0. Raises UsageError if the name is taken."""
    if name in ir.convenience.create_value_mapping(owner):
        raise UsageError("the graph has a value of this name already", where=f"value {name!r}")
    default = np.zeros([size if isinstance(size, int) else 0 for size in shape], np.float32)
    value = graph.add_constant(owner, name, default)
    value.shape = ir.Shape(shape)
    owner.inputs.append(value)
    return value
