"""The `ort` form: a quantized graph in the operators that ONNX Runtime's CPU kernels run fastest.

Q/DQ graph ──► opset 23 with com.microsoft operators; the same function up to float rounding

ONNX Runtime's own optimizer finds some of these by itself and misses the rest (a bias behind a
product), or makes the graph slower (SkipLayerNormalization). Written down they hold in every
session, whatever its settings. RULES is the whole list, in order. Convolutions stay Q/DQ: the
optimizer's integer convolutions are as fast as they get, once nothing stands between them.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from optkit.fusion.apply import apply
from optkit.fusion.noop import remove_dead
from optkit.fusion.ort.attention import attention
from optkit.fusion.ort.heads import unpack_heads
from optkit.fusion.ort.layout import channels_last
from optkit.fusion.ort.norm import rms_norm, sum_apart
from optkit.fusion.ort.product import multiply, part
from optkit.fusion.ort.rotary import rotary
from optkit.fusion.rule import FusionLog, Rule
from optkit.fusion.select import select_early

__all__ = ["OPSET", "RULES", "to_ort"]

OPSET = 23
"""The first with Attention and RMSNormalization. From opset 21 on it only allows more dtypes, so a
graph is raised to it by saying so."""

RULES: tuple[Rule[Any], ...] = (
    unpack_heads,
    select_early,
    rotary,
    attention,
    rms_norm,
    sum_apart,
    multiply,
    part,
    channels_last,
    remove_dead,
)


def to_ort(model: ir.Model) -> FusionLog:
    """Apply RULES to the main graph until none matches, in place. Subgraphs are left as they are.

    A MatMul or Gemm that became an integer product keeps its node name, and an attention has that
    of its product with the values. Raises InputRefused where an operator's inputs do not fit it.
    """
    model.opset_imports[""] = max(OPSET, model.opset_imports.get("", OPSET))
    return apply(model, RULES)
