"""The layer list of an engine as work: one kernel for each fused layer that the compiler names.

The list has what is known only after compilation: which nodes share a kernel, in what type each
product multiplies, and how many bytes every kernel reads and writes. So this module assumes nothing
about fusion, unlike `graph_work.of_graph`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optkit.craft.prediction.graph_work import LOOKUPS, PICKING, SMALL, is_attention
from optkit.craft.prediction.work import PEAKS, Kind, Work
from optkit.facts.engines import FusedLayer
from optkit.facts.errors import InputRefused
from optkit.facts.node_cost import NodeCost


def of_engine(layers: Sequence[FusedLayer], costs: Mapping[str, NodeCost]) -> list[Work]:
    """The work of each layer, in their order. `layers` and `costs` (ONNX node → cost): at the
    sizes of one batch.

    Raises InputRefused for a layer with a dynamic size, or one that multiplies in an unknown type.
    """
    return [_work(layer, [costs[n] for n in layer.nodes if n in costs], costs) for layer in layers]


def _work(layer: FusedLayer, inside: Sequence[NodeCost], costs: Mapping[str, NodeCost]) -> Work:
    written = sum(tensor.bytes or 0 for tensor in layer.outputs)
    moved = _moved(layer, inside, written)
    products = [costs[node] for node in layer.products if node in costs]
    weights = _constant_bytes(layer, inside, written)
    if not products or layer.dtype is None:
        kernels = 0.0 if written <= SMALL else 1.0  # arithmetic on shapes, which runs on the host
        return Work("elementwise", "fp16", weight_bytes=weights, moved=moved, kernels=kernels)
    if layer.dtype not in PEAKS:  # as a stranger's report may say
        raise InputRefused(f"no peak is known of {layer.dtype!r}", where=f"layer {layer.name!r}")
    largest = max(products, key=lambda cost: cost.macs or 0)
    rows, columns = _shape(largest)
    return Work(
        _kind(layer, products),
        PEAKS[layer.dtype],
        2.0 * sum(cost.macs or 0 for cost in products),
        weights,
        moved,
        rows=rows,
        columns=columns,
        unpacked=_unpacked(layer, products),
    )


def _moved(layer: FusedLayer, inside: Sequence[NodeCost], written: int) -> int:
    """Bytes of activations that the layer reads and writes."""
    moved = layer.bytes_moved
    if moved is None:
        raise InputRefused("a dynamic size has no latency", where=f"layer {layer.name!r}")
    if inside and all(cost.op in PICKING for cost in inside):
        return min(moved, 2 * written)  # reads what it writes, not all that it could read
    return moved


def _kind(layer: FusedLayer, products: Sequence[NodeCost]) -> Kind:
    """A weight behind a DequantizeLinear is none of the product's own, but the layer knows that it
    reads one."""
    if any(cost.op.startswith("Conv") or cost.op == "FusedConv" for cost in products):
        return "conv"
    weighted = layer.weight_dtype is not None
    return "attention" if not weighted and all(map(is_attention, products)) else "gemm"


def _shape(product: NodeCost) -> tuple[float, float]:
    """Rows and columns of its output as a matrix; zeros where they are not known."""
    if not product.columns or not product.out_bytes or not product.bits:
        return 0.0, 0.0
    return product.out_bytes * 8 / product.bits / product.columns, product.columns


def _constant_bytes(layer: FusedLayer, inside: Sequence[NodeCost], written: int) -> int:
    """Bytes of constants that a call reads. Of a table that is looked up, only the rows that are
    written, however large the table is."""
    if not any(cost.op in LOOKUPS for cost in inside):
        return layer.constant_bytes
    return sum(min(tensor.bytes or 0, written) for tensor in layer.constants)


def _unpacked(layer: FusedLayer, products: Sequence[NodeCost]) -> float:
    """Weights that become floats again before they multiply: those stored in another type. Each row
    of a product multiplies every weight once."""
    if layer.weight_dtype is None or layer.weight_dtype == layer.dtype:
        return 0.0
    shapes = [(cost.macs or 0, _shape(cost)[0]) for cost in products]
    return sum(macs / rows for macs, rows in shapes if rows)
