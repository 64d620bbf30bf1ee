"""Whether 8-bit products of a graph are exact on any CPU, or need a CPU that sums in 32 bits."""

from __future__ import annotations

import onnx_ir as ir

from optkit.ground.graph.weights import rows

# |weight| up to which the sum of two products with a u8 code fits in 16 bits: 2 × 255 × 64 < 2¹⁵
_SAFE = 64
_NO_PRODUCT = ("Gather", "GatherBlockQuantized")
_BLOCK_ROWS = 4096
_INTEGER = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)


def assumes_vnni(model: ir.Model) -> bool:
    """Whether an int8 matrix or filter has codes beyond 7 bits. With such weights x86 CPUs without
    VNNI saturate (`target.machine.sums_in_16_bits`): ONNX Runtime's documentation on quantization,
    "reduce_range"."""
    weights = (v for graph in model.graphs() for v in graph.initializers.values() if _is_weight(v))
    return any(_exceeds(value) for value in weights)


def multiplies_codes(model: ir.Model) -> bool:
    """Whether nodes multiply integers directly, in every runtime, without the fusion of Q/DQ."""
    return any(node.op_type in _INTEGER for node in model.graph.all_nodes())


def _is_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.INT8 or len(tensor.shape) < 2:
        return False
    return any(use.node.op_type not in _NO_PRODUCT for use in value.uses())


def _exceeds(value: ir.Value) -> bool:
    return any(
        block.size and (block.max() > _SAFE or block.min() < -_SAFE)
        for block in rows(value, _BLOCK_ROWS)
    )
