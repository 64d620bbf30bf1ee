"""The kernels that ONNX Runtime makes of a graph, as fused layers: from its optimized graph and the
profile of one run.

The profile names every kernel with its real dtypes and sizes. The ONNX node of a kernel is found by
its weight, its name or its output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from optkit.facts.dtypes import DTYPES
from optkit.facts.engines import FusedLayer, LayerTensor
from optkit.facts.tensors import Feed

if TYPE_CHECKING:  # the rules of a backend must be available without loading a graph library
    import onnx_ir as ir

# ONNX Runtime's names of element types: in signatures "tensor(float)", in profiles "float"
NUMPY = {dtype.ort or dtype.name: dtype.name for dtype in DTYPES.values()}


def parse_kernels(
    optimized: ir.Model,
    runs: Mapping[str, Mapping[str, Any]],
    feed: Feed,
    nodes: Mapping[str, ir.Node],
) -> tuple[FusedLayer, ...]:
    """The kernels of an optimized graph, in order. `runs`: kernel name → arguments of its profile
    event; `feed`: the feed of this run; `nodes`: those of the given graph that multiply."""
    from optkit.ground import graph

    origins = _Origins.of(nodes)
    known = {name: LayerTensor(name, a.shape, a.dtype.name) for name, a in feed.items()}
    layers = []
    for node in optimized.graph:
        outputs = _outputs(node, runs.get(node.name or "", {}))
        known |= {tensor.name: tensor for tensor in outputs}
        names = dict.fromkeys(str(v.name) for v in node.inputs if v is not None)
        inputs = tuple(known[name] for name in names if name in known)
        found = origins.find(node)
        stands_for = tuple(graph.names_in(found)) if found else ()
        multiplies = any(name in nodes for name in stands_for)
        layers.append(
            FusedLayer(
                name=str(node.name),
                kind=node.op_type,
                inputs=inputs,
                constants=_constants(node),
                outputs=outputs,
                nodes=stands_for,
                products=stands_for if multiplies else (),
                dtype=_multiplies_in(node, inputs) if multiplies and inputs else None,
                weight_dtype=_reads_weight_in(node) if multiplies else None,
            )
        )
    return tuple(layers)


def _outputs(node: ir.Node, run: Mapping[str, Any]) -> tuple[LayerTensor, ...]:
    """Dtypes and sizes of the outputs in the run; (-1,), unknown, for an output that is not a
    tensor of numbers."""
    names = [str(value.name) for value in node.outputs if value.name]
    found = [
        (type_, shape) for row in run.get("output_type_shape", []) for type_, shape in row.items()
    ]
    if len(found) != len(names) or any(type_ not in NUMPY for type_, _ in found):
        return tuple(LayerTensor(name, (-1,), "float32") for name in names)
    return tuple(
        LayerTensor(name, tuple(shape), NUMPY[type_])
        for name, (type_, shape) in zip(names, found, strict=True)
    )


def _constants(node: ir.Node) -> tuple[LayerTensor, ...]:
    stored = {v.name: v.const_value for v in node.inputs if v is not None and v.const_value}
    return tuple(
        LayerTensor(str(name), tuple(tensor.shape.numpy()), tensor.dtype.numpy().name)
        for name, tensor in stored.items()
    )


def _multiplies_in(node: ir.Node, inputs: Sequence[LayerTensor]) -> str:
    """The dtype of the first input; MatMulNBits and QMoE of accuracy level 4 round it to 8 bits
    themselves, as QMoE of 8 bits does at every level, and a cell with codes."""
    rounds = node.op_type == "DynamicQuantizeLSTM"
    rounds |= node.op_type == "QMoE" and node.attributes.get_int("expert_weight_bits", 4) == 8
    rounds |= node.attributes.get_int("accuracy_level", 0) == 4
    return "int8" if rounds else inputs[0].dtype


def _reads_weight_in(node: ir.Node) -> str | None:
    """The dtype of the constant by which it multiplies, unpacked."""
    if node.op_type == "MatMulNBits":
        return f"int{node.attributes.get_int('bits', 4)}"
    if node.op_type == "QMoE":
        return f"int{node.attributes.get_int('expert_weight_bits', 4)}"
    if node.op_type == "MatMulBnb4":
        return "nf4" if node.attributes.get_int("quant_type", 0) == 1 else "float4e2m1"
    constants = [t for t in _constants(node) if len(t.shape) > 1]
    return constants[0].dtype if constants else None


_PRODUCT = re.compile("Conv|MatMul|Gemm|Attention|MoE")
_SUFFIX = re.compile(r"(/\w+Fusion/?|_token_\d+|_nchwc)+$")


@dataclass(frozen=True)
class _Origins:
    """Finds the ONNX node of an optimized node: by its weight, if the weight has kept its name;
    otherwise by the name of the node, without the suffix of the optimizer; otherwise by its output,
    which may be that of a Relu that it absorbed."""

    names: frozenset[str]
    weights: dict[str, str]
    outputs: dict[str, str]

    @classmethod
    def of(cls, nodes: Mapping[str, ir.Node]) -> Self:
        from optkit.ground import graph

        graphs = {node.graph for node in nodes.values()}
        weights: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if (weight := graph.constant_weight(node)) is not None:
                weights.setdefault(str(weight[1].name), []).append(name)
        return cls(
            frozenset(str(node.name) for owner in graphs for node in owner or ()),
            {weight: names[0] for weight, names in weights.items() if len(names) == 1},
            {str(v.name): name for name, node in nodes.items() for v in _results(node)},
        )

    def find(self, node: ir.Node) -> str | None:
        name = str(node.name)
        stem = name if name in self.names else _SUFFIX.sub("", name)
        candidates = [stem if stem in self.names else None]
        if _PRODUCT.search(node.op_type):
            fed = (self.weights.get(str(v.name)) for v in node.inputs if v is not None)
            results = (stem, str(node.outputs[0].name))
            candidates = [*fed, *candidates, *(self.outputs.get(result) for result in results)]
        return next((found for found in candidates if found is not None), None)


def _results(node: ir.Node) -> tuple[ir.Value, ...]:
    """The output of the node, and that of a following Relu if nothing else reads the output."""
    uses = node.outputs[0].uses()
    absorbed = [use.node for use in uses if use.node.op_type == "Relu" and len(uses) == 1]
    return (node.outputs[0], *(relu.outputs[0] for relu in absorbed))
