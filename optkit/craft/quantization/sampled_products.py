"""Sampled rows of the inputs of products, before and after quantization: what the correction of a
bias is computed from."""

from __future__ import annotations

import numpy as np

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.qparams import ActivationQParams
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.read_weight import ReadWeight
from optkit.craft.quantization.qdq import dynamic
from optkit.craft.quantization.rounding import convolution
from optkit.ground.statistics import ValueStatistics


def multiplied(
    weight: ReadWeight, codes: np.ndarray, value: ValueStatistics
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Sampled rows of the input, the weight and its dequantized codes, in the form that
    `bias_correction` takes; None if no rows were sampled."""
    if weight.is_matrix:
        by_columns = codes if weighted_nodes.summed_axis(weight.node) == 0 else codes.T
        w_hat = scales.dequantize(by_columns, weight.scale, 1, fmt=weight.format)
        return None if value.rows is None else (value.rows.data, weight.by_columns, w_hat)
    window = weighted_nodes.window(weight.node)
    if window not in value.patches:
        return None
    rows = value.patches[window].rows.data
    w_hat = convolution.dequantized(codes, weight.scale, weight.format, window.groups)
    w = convolution.matrices(weight.numbers, window.groups)
    return rows.reshape(len(rows), window.groups, -1), w, w_hat


def rounded(rows: np.ndarray, activation: ActivationQParams) -> np.ndarray:
    """The values of `rows` after quantization of the activation."""
    scale, fmt = activation.scale, activation.format
    if fmt.granularity == "block":
        return dynamic.rounded(rows, float(scale.scale), fmt)
    held = scales.dequantize(scales.quantize(rows, scale, fmt), scale, fmt=fmt)
    if activation.rest is not None:
        rest = scales.quantize(rows - held, activation.rest, fmt)
        held += scales.dequantize(rest, activation.rest, fmt=fmt)
    return held
