"""Fusion into the `standard` form: the same function with fewer nodes, in plain ONNX operators.

RULES is the complete list, in the order of application; the rules are applied until none matches.
The result equals the given graph up to float rounding. `widen` runs before them: it converts the
inside of a half-precision model to FP32. `arrange` runs after them if products are quantized.
`fusion.ort` has the form for ONNX Runtime on a CPU.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from optkit.craft.fusion.apply import apply
from optkit.craft.fusion.rule import FusionLog, Rule
from optkit.craft.fusion.standard.affine import fold_scale, fold_shift
from optkit.craft.fusion.standard.batchnorm import fold_batchnorm
from optkit.craft.fusion.standard.branch import take_branch
from optkit.craft.fusion.standard.constants import fold_constants, fold_shapes
from optkit.craft.fusion.standard.guard import drop_guard
from optkit.craft.fusion.standard.layer_norm import layer_norm
from optkit.craft.fusion.standard.layout import (
    merge_reshapes,
    merge_transposes,
    settle_reshape,
    swap_axes,
)
from optkit.craft.fusion.standard.matrix_products import plain_conv, plain_gemm, plain_matmul
from optkit.craft.fusion.standard.noop import remove_dead, remove_noop, settle_castlike
from optkit.craft.fusion.standard.pointwise import one_function
from optkit.craft.fusion.standard.pool import global_pool
from optkit.craft.fusion.standard.reduced import keep_reduced
from optkit.craft.fusion.standard.repeated import merge_repeated
from optkit.craft.fusion.standard.select import select_early, select_one
from optkit.craft.fusion.standard.softmax import softmax
from optkit.craft.fusion.standard.widen import widen

__all__ = ["ARRANGEMENT", "RULES", "FusionLog", "Rule", "arrange", "fuse", "widen"]

RULES: tuple[Rule[Any], ...] = (
    settle_castlike,
    fold_shapes,
    fold_constants,
    take_branch,
    remove_noop,
    merge_repeated,
    settle_reshape,
    merge_transposes,
    swap_axes,
    merge_reshapes,
    keep_reduced,
    fold_batchnorm,
    fold_scale,
    fold_shift,
    layer_norm,
    one_function,
    softmax,
    drop_guard,
    global_pool,
    select_one,
    select_early,
    remove_dead,
)

ARRANGEMENT: tuple[Rule[Any], ...] = (
    plain_gemm,
    plain_matmul,
    plain_conv,
    fold_constants,
    merge_transposes,
    remove_noop,
    remove_dead,
)


def fuse(model: ir.Model) -> FusionLog:
    """Apply RULES to the main graph until none matches, in place. Subgraphs do not change.

    Conv, MatMul and Gemm keep their node names; a value that still exists keeps its name.
    """
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return apply(model, RULES)


def arrange(model: ir.Model) -> FusionLog:
    """Write the products of a fused graph in the form whose weights can be quantized, in place, by
    ARRANGEMENT. The main graph only."""
    return apply(model, ARRANGEMENT)
