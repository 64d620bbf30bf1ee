"""The `ort` form: a graph in the operators with the fastest CPU kernels of ONNX Runtime.

    `standard`, with Q/DQ or without ──► opset 23 and com.microsoft; equal up to float rounding

The optimizer of ONNX Runtime finds some of these operators, misses others (a bias after a product),
and makes some graphs slower (SkipLayerNormalization). Operators that are written into the file
apply in every session, with any settings. RULES is the complete list, in order;
docs/studies/fusion.md has the gain of each rule, and fusions that are left out because they gain
nothing. Convolutions stay Q/DQ: the integer convolutions of the optimizer are fast if no node is
between them.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from optkit.craft.fusion.apply import apply
from optkit.craft.fusion.ort.activation import activation, bias_gelu, fused_gemm
from optkit.craft.fusion.ort.attention import attention
from optkit.craft.fusion.ort.bags import bags
from optkit.craft.fusion.ort.bias import integer_bias
from optkit.craft.fusion.ort.cached import cached, note_in_place, past_length
from optkit.craft.fusion.ort.channels_last import channels_last
from optkit.craft.fusion.ort.experts import experts
from optkit.craft.fusion.ort.float_pool import float_pool
from optkit.craft.fusion.ort.heads import unpack_heads
from optkit.craft.fusion.ort.mask import grid
from optkit.craft.fusion.ort.norm import bare_norm, rms_norm, sum_apart, sum_bias
from optkit.craft.fusion.ort.packed import packed
from optkit.craft.fusion.ort.prelu import prelu
from optkit.craft.fusion.ort.product import multiply, part
from optkit.craft.fusion.ort.projection import projection
from optkit.craft.fusion.ort.rotary import rotary
from optkit.craft.fusion.ort.together import together
from optkit.craft.fusion.ort.write import OPSET
from optkit.craft.fusion.rule import FusionLog, Rule
from optkit.craft.fusion.standard.noop import remove_dead
from optkit.craft.fusion.standard.select import select_early
from optkit.ground import graph

__all__ = ["OPSET", "RULES", "to_ort"]

_WITHOUT_KERNEL = frozenset(
    {
        *("RoiAlign", "MaxRoiPool", "GlobalLpPool", "Multinomial", "Bernoulli"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
"""Operators whose kernels in ONNX Runtime 1.31 end at opset 21 (Bernoulli: of a function of it)."""

RULES: tuple[Rule[Any], ...] = (
    unpack_heads,
    select_early,
    bags,
    grid,
    rotary,
    attention,
    cached,
    past_length,
    projection,
    experts,
    activation,
    prelu,
    bias_gelu,
    fused_gemm,
    rms_norm,
    bare_norm,
    sum_apart,
    sum_bias,
    multiply,
    integer_bias,
    part,
    together,
    packed,
    float_pool,
    channels_last,
    remove_dead,
)


def to_ort(model: ir.Model, opset: int | None = None) -> FusionLog:
    """Apply RULES to the main graph until none matches, in place. Subgraphs do not change.

    A MatMul or Gemm that becomes an integer product keeps its node name, and an attention gets the
    name of its product with the values. `opset`: the newest that the result may have; with an older
    one than 23, attention stays in single operators. Without a limit, the opset becomes 23, or
    stays if it is newer, or if a later one has no kernel for an operator of the graph.

    Raises InputRefused if the inputs of an operator do not fit it, or if the graph needs a newer
    opset.
    """
    able = not any(node.op_type in _WITHOUT_KERNEL for node in model.graph.all_nodes())
    if able and (opset is None or opset >= OPSET):
        model.opset_imports[""] = max(OPSET, model.opset_imports.get("", OPSET))
    log = apply(model, RULES)
    if opset is not None:
        graph.lower(model, opset)
    note_in_place(model)
    return log
