"""The `ort` form: a graph in the operators that ONNX Runtime's CPU kernels run fastest.

`standard`, with Q/DQ or without ──► opset 23 and com.microsoft; equal up to float rounding

ONNX Runtime's own optimizer finds some of these by itself and misses the rest (a bias behind a
product), or makes the graph slower (SkipLayerNormalization). Written down they hold in every
session, whatever its settings. RULES is the whole list, in order; what is gained by each, and what
is not written because it gains nothing, stands in docs/fusion.md. Convolutions stay Q/DQ: the
optimizer's integer convolutions are as fast as they get, once nothing stands between them.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from optkit.fusion.apply import apply
from optkit.fusion.ort.activation import activation, bias_gelu, fused_gemm
from optkit.fusion.ort.attention import attention
from optkit.fusion.ort.cached import cached, note_in_place, past_length
from optkit.fusion.ort.heads import unpack_heads
from optkit.fusion.ort.layout import channels_last
from optkit.fusion.ort.mask import grid
from optkit.fusion.ort.norm import rms_norm, sum_apart, sum_bias
from optkit.fusion.ort.product import multiply, part
from optkit.fusion.ort.projection import projection
from optkit.fusion.ort.rotary import rotary
from optkit.fusion.ort.rows import packed
from optkit.fusion.ort.together import together
from optkit.fusion.ort.write import OPSET
from optkit.fusion.rule import FusionLog, Rule
from optkit.fusion.standard.noop import remove_dead
from optkit.fusion.standard.select import select_early

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
    grid,
    rotary,
    attention,
    cached,
    past_length,
    projection,
    activation,
    bias_gelu,
    fused_gemm,
    rms_norm,
    sum_apart,
    sum_bias,
    multiply,
    part,
    together,
    packed,
    channels_last,
    remove_dead,
)


def to_ort(model: ir.Model) -> FusionLog:
    """Apply RULES to the main graph until none matches, in place. Subgraphs are left as they are.

    A MatMul or Gemm that became an integer product keeps its node name, and an attention has that
    of its product with the values. A graph stays at its opset where an operator of it has no kernel
    at a later one. Raises InputRefused where an operator's inputs do not fit it.
    """
    if not any(node.op_type in _WITHOUT_KERNEL for node in model.graph.all_nodes()):
        model.opset_imports[""] = max(OPSET, model.opset_imports.get("", OPSET))
    log = apply(model, RULES)
    note_in_place(model)
    return log
