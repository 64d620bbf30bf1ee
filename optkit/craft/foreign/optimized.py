"""Graphs that ONNX Runtime's optimizer has rewritten and saved: its operators, which no other
runtime has, and whose products optkit does not quantize.

The lists are those of the optimizers of ONNX Runtime 1.32 (onnxruntime/core/optimizer) and of
onnxruntime.transformers. Exporters write operators of com.microsoft too (GroupQueryAttention,
MultiHeadAttention, RotaryEmbedding, MatMulNBits, SkipSimplifiedLayerNormalization, Gelu, …: ONNX
Runtime GenAI, Olive, optimum); these are not listed.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from optkit.ground import graph

_NCHWC = "com.microsoft.nchwc"  # convolutions in blocks of the channels of one CPU
_MICROSOFT = "com.microsoft"
_OPERATORS = frozenset(
    {
        *("FusedConv", "NhwcConv", "NhwcFusedConv", "FusedGemm", "FusedMatMul", "TransposeMatMul"),
        *("FusedMatMulActivation", "Attention", "QAttention", "DynamicQuantizeMatMul"),
        *("DynamicQuantizeLSTM", "MatMulIntegerToFloat", "PackedAttention", "NhwcMaxPool"),
        *("BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "SkipGroupNorm"),
        *("EmbedLayerNormalization", "QEmbedLayerNormalization", "RemovePadding"),
        *("RestorePadding", "ConvTransposeWithDynamicPads"),
    }
)
_WITHOUT_PRODUCTS = ("Bias", "Embed", "QEmbed", "Skip")


def optimized(model: ir.Model) -> tuple[dict[str, int], int]:
    """The operators that only an optimizer of ONNX Runtime writes → how often, and how many of them
    multiply by a weight. Empty and 0 for a graph from before such an optimizer."""
    nodes = [
        node
        for node in model.graph.all_nodes()
        if node.domain == _NCHWC or (node.domain == _MICROSOFT and node.op_type in _OPERATORS)
    ]
    counts = Counter(node.op_type for node in nodes)
    return dict(counts.most_common()), sum(map(_multiplies_weight, nodes))


def _multiplies_weight(node: ir.Node) -> bool:
    if node.op_type.startswith(_WITHOUT_PRODUCTS):
        return False
    numbers = (value.shape for value in node.inputs[:2] if graph.is_constant(value) and value)
    return any(shape is not None and len(shape) > 1 for shape in numbers)
